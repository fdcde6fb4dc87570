"""dsprof beside other instruments, in inference and under torch.compile: none sees another run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.findings.finding import Status
from dsprof.trace.reader import read_trace
from dsprof.trace.run import find_run
from dsprof.trace.schema import FILE_PATTERN
from tests.dist.launch import PROGRAMS, launch
from tests.dist.oracle import USUAL_NAMES

WAYS = ("auto", "dispatcher", "native")
by_way = pytest.mark.parametrize("way", WAYS)
by_rank = pytest.mark.parametrize("rank", [0, 1])

pytestmark = [pytest.mark.dist, pytest.mark.long]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What training beside profilers, and inference, left."""
    folder = tmp_path_factory.mktemp("beside")
    launch(PROGRAMS / "beside.py", args=[folder], imported="torch").check()
    return folder


def of_rank(folder: Path, what: str, rank: int) -> dict[str, Any]:
    return json.loads((folder / f"{what}.rank{rank}.json").read_text())  # type: ignore[no-any-return]


@by_way
@by_rank
def test_torch_profiler_sees_the_same_and_the_trace_is_complete(
    folder: Path, way: str, rank: int
) -> None:
    profiled = of_rank(folder, "profiled", rank)
    assert profiled[way] == profiled["bare"]
    counted: Counter[str] = Counter()
    for name, calls in profiled[way].items():
        if name.startswith("c10d::"):
            counted[USUAL_NAMES[name.removeprefix("c10d::")]] += calls
    [file] = (folder / way / "profiled").glob(f"*rank0000{rank}.json")
    comm = read_trace(file).collectives
    in_steps = [comm.words[comm.op[i]] for i in range(len(comm)) if comm.step[i] >= 0]
    assert counted
    assert Counter(in_steps) == counted


@by_way
def test_the_flops_profiler_prints_the_same(folder: Path, way: str) -> None:
    printed = of_rank(folder, "flops", 0)
    assert any("fwd flops" in line for line in printed["bare"])
    assert printed[way] == printed["bare"]
    files = list((folder / way / "flops").glob(FILE_PATTERN))
    assert [len(read_trace(file).steps) for file in files] == [3, 3]


def test_inference_without_a_step_is_recorded_and_reported(folder: Path) -> None:
    run = find_run([folder / "inference"])
    for file in run.files:
        trace = read_trace(file)
        assert trace.steps == []
        assert len(trace.collectives) >= 5
        assert trace.trailer is not None
        assert trace.trailer.failed_hooks == {}
    diagnosis = diagnose(run)
    assert [finding.rule for finding in diagnosis.findings if finding.status == Status.FAIL] == []


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What torch.compile made of rows that communicate."""
    folder = tmp_path_factory.mktemp("compiled")
    launch(PROGRAMS / "compiled.py", args=[folder], imported="torch").check()
    return folder


NOT_TRIED = {"ddp"}
"""Dynamo adds a frame to a model whose `forward` lies in torch, and breaks there each time that it
compiles. DDP's does not with dsprof: the frame is not tried, and the same graphs come without."""


@by_way
@by_rank
def test_the_same_graphs_breaks_and_recompilations(compiled: Path, way: str, rank: int) -> None:
    for name, row in of_rank(compiled, "compiled", rank).items():
        assert row["bare"]["graphs"] > 0, name
        assert row["bare"]["recompilations"] > 0, name
        assert row[way]["graphs"] == row["bare"]["graphs"], name
        if name in NOT_TRIED:
            assert 0 < row[way]["breaks"] < row["bare"]["breaks"]
            assert 0 < row[way]["recompilations"] < row["bare"]["recompilations"]
        else:
            assert row[way] == row["bare"], name
        assert list((compiled / way / name).glob(FILE_PATTERN)), "nothing was recorded"
