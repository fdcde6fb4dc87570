"""`dsprof bench` over gloo: what it measures, and that it sees every wrong result."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dsprof.analysis.baseline import read_baseline
from tests.dist.launch import PROGRAMS, environment, launch

pytestmark = pytest.mark.dist

COLLECTIVES = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"]
ROOTED = ["broadcast", "reduce", "gather", "scatter", "send"]


@pytest.mark.long
def test_it_measures_every_operation_and_what_hiding_costs(tmp_path: Path) -> None:
    output = tmp_path / "baseline.json"
    arguments = ["bench", "-o", output, "--sizes", "4K,1M"]
    done = launch(PROGRAMS / "dsprof_command.py", args=arguments).check()
    made = read_baseline(output)
    assert (made.machine.backend, made.machine.device) == ("gloo", "cpu")
    assert (made.machine.world_size, len(made.machine.hosts)) == (2, 1)
    assert made.unsupported == {}
    assert [cost.op for cost in made.costs] == [*COLLECTIVES, *ROOTED, "barrier"]
    for cost in made.costs:
        sizes = [sample.nbytes for sample in cost.samples]
        assert sizes == ([0] if cost.op == "barrier" else [4096, 1 << 20])
        assert all(sample.time_ns > 0 for sample in cost.samples)
        assert (cost.group, cost.ranks, cost.crosses_nodes) == ("world", (0, 1), False)
        assert f"{cost.op:15} world      2" in done.output
    # No memory copies 100 GB a second through a socket; a call that returned at once would.
    slowest = made.cost_ns("all_reduce", 1 << 20, 2)
    assert slowest is not None
    assert slowest > 10_000
    assert made.hiding is not None
    assert made.hiding.nbytes == 1 << 20
    assert 0 <= made.hiding.low <= made.hiding.high
    assert [product.precision for product in made.products] == ["fp32", "bf16", "fp16"]
    assert all(product.flops_per_s > 1e6 for product in made.products)
    assert made.machine.precision["cpu_capability"] in ("DEFAULT", "AVX2", "AVX512")
    assert made.contention == (made.hiding.low, made.hiding.high)


def test_every_wrong_result_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    output = tmp_path / "baseline.json"
    arguments = ["-o", output, "--sizes", "4K"]
    done = launch(PROGRAMS / "spoilt_collectives.py", args=arguments)
    assert done.returncode == 1
    named = re.findall(
        r"wrong result: (\w+) of 4,096 bytes in group world of 2 ranks, rank (\d):"
        r" 1 elements",
        done.output,
    )
    both = {(op, rank) for op in COLLECTIVES for rank in "01"}
    one = {("broadcast", "1"), ("reduce", "0"), ("gather", "0"), ("scatter", "1"), ("send", "1")}
    assert set(named) == both | one
    assert len(named) == len(both | one)
    assert not output.exists()


def test_without_a_launcher_it_says_so_in_one_line() -> None:
    env = {name: value for name, value in environment({}).items() if name not in ("RANK",)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "dsprof.bench"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("dsprof: cannot join the other ranks: ")
    assert done.stderr.count("\n") == 1
