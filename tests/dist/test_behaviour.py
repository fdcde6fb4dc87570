"""Training is the same with dsprof and without; what a rank did is told truly, even if it dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pytest

from dsprof.live.watching import Watched
from dsprof.trace.reader import read_trace
from tests.dist.launch import PROGRAMS, ROOT, launch

DISTURBED = PROGRAMS / "disturbed.py"
SLEEP_MS = 50
SLEEP_NS = SLEEP_MS * 1_000_000

pytestmark = [pytest.mark.dist, pytest.mark.alone]
by_variable = pytest.mark.skipif(
    not [entry for entry in entry_points(group="torch.backends") if entry.name == "dsprof"],
    reason="DSPROF=1 needs the entry point of an installed dsprof: pip install -e .",
)


def report(folder: Path) -> dict[str, Any]:
    """The stable JSON of `dsprof report`."""
    command = [sys.executable, "-m", "dsprof", "report", str(folder), "--format", "json", "-o", "-"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def recorded(tmp_path: Path, *args: object) -> Path:
    """Run the disturbed program under DSPROF=1 and return the folder of its traces."""
    env = {"DSPROF": "1", "DSPROF_OUT": str(tmp_path / "trace")}
    launch(DISTURBED, args=[tmp_path, *args], env=env).check()
    return tmp_path / "trace"


def truth(tmp_path: Path, rank: int) -> list[dict[str, int]]:
    lines = (tmp_path / f"truth.rank{rank}.json").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_losses_gradients_and_weights_are_bit_identical(tmp_path: Path) -> None:
    launch(PROGRAMS / "same_training.py", args=[tmp_path], imported="torch").check()
    for rank in range(2):
        ways = json.loads((tmp_path / f"training.rank{rank}.json").read_text())
        assert sorted(ways) == ["ddp", "fsdp2", "zero0", "zero1", "zero2", "zero3"]
        for way, digests in ways.items():
            assert digests["recorded"] == digests["bare"], f"{way} rank {rank}"
            weights = [line for line in digests["bare"] if line.startswith("weights")]
            assert len(set(weights)) >= 8, "the model must learn, or nothing is compared"
            assert not any(line.startswith("0 gradients") for line in digests["bare"])
            assert list((tmp_path / way).iterdir()), "nothing was recorded"


@by_variable
def test_a_sleep_of_all_ranks_before_the_step_is_idle_or_other(tmp_path: Path) -> None:
    folder = recorded(tmp_path, "--sleep-ms", SLEEP_MS, "--sleepers", 0, 1)
    ranks = zip(truth(tmp_path, 0), truth(tmp_path, 1), strict=True)
    sleeps_ns = [mean(row["sleep_ns"] for row in step) for step in ranks][2:]
    rows = report(folder)["steps"]["rows"][2:]
    for row in rows:
        parts = ("compute_ns", "exposed_comm_ns", "copies_ns", "idle_ns", "other_ns")
        assert sum(row[part] or 0 for part in parts) == row["total_ns"]
    nowhere = [(row["idle_ns"] or 0) + row["other_ns"] for row in rows]
    awake_ns = [ns - sleep for ns, sleep in zip(nowhere, sleeps_ns, strict=True)]
    assert min(awake_ns) > 0
    # The least of them: whatever else runs on the machine makes only some steps longer.
    slow = min(ns for ns, sleep in zip(awake_ns, sleeps_ns, strict=True) if sleep)
    quick = min(ns for ns, sleep in zip(awake_ns, sleeps_ns, strict=True) if not sleep)
    assert slow == pytest.approx(quick, abs=0.05 * SLEEP_NS)


@by_variable
def test_a_late_rank_is_exposed_communication_of_the_others(tmp_path: Path) -> None:
    folder = recorded(tmp_path, "--sleep-ms", SLEEP_MS, "--sleepers", 1)
    waits = report(folder)["waits"]
    late = [step for step, row in enumerate(truth(tmp_path, 1)) if row["sleep_ns"]]
    waited_ns = {}
    for rank, exposed_ns in zip(waits["ranks"], waits["exposed_ns"], strict=True):
        blocked_ns = [row["blocked_ns"] for row in truth(tmp_path, rank)]
        errors = [abs(exposed_ns[step] - blocked_ns[step]) / SLEEP_NS for step in late]
        assert median(errors) < 0.05, f"rank {rank}"
        waited_ns[rank] = median(blocked_ns[step] for step in late)
    assert waited_ns[0] - waited_ns[1] > SLEEP_NS / 2, "rank 0 must have waited for rank 1"


@by_variable
def test_a_killed_rank_leaves_what_it_did(tmp_path: Path) -> None:
    """The last half second apart, for which it waits: see `tests/trace/test_writer.py`."""
    env = {"DSPROF": "1", "DSPROF_OUT": str(tmp_path / "trace")}
    args = [tmp_path, "--steps", 20, "--kill", 1]
    assert launch(DISTURBED, args=args, env=env).returncode != 0
    [file] = (tmp_path / "trace").glob("*.rank00001.json")
    trace = read_trace(file)
    assert trace.trailer is None
    assert [step.step for step in trace.steps] == [*range(20)]
    said = report(tmp_path / "trace")
    assert 1 in said["quality"]["unclean_ranks"]
    assert not said["run"]["is_running"]
    assert said["run"]["ranks"] == [0, 1]
    assert len(said["findings"]) > 1
    watched = Watched([tmp_path / "trace"])
    watched.look()
    while watched.now().ranks[1].state == "running":  # for three seconds after its last sign
        watched.look()
    watched.judge.close()
    assert watched.now().ranks[1].state == "gone"


@by_variable
def test_two_runs_into_one_folder_stay_two_runs(tmp_path: Path) -> None:
    folder = recorded(tmp_path, "--steps", 3)
    recorded(tmp_path, "--steps", 5)
    assert len(list(folder.glob("*.rank*.json"))) == 4
    said = report(folder)
    assert said["run"]["steps"] == 5, "the newer run is the one to report"
    assert len(said["quality"]["strangers"]) == 2


@by_variable
def test_gradients_that_ddp_reduces_in_cpp_are_seen(tmp_path: Path) -> None:
    """The example's seven layers of 512 are 1,576,449 float32 parameters, reduced once a step."""
    env = {"DSPROF": "1", "DSPROF_OUT": str(tmp_path)}
    launch(PROGRAMS / "left_in_order.py", args=[ROOT / "examples" / "ddp.py"], env=env).check()
    [file] = tmp_path.glob("*.rank00001.json")
    trace = read_trace(file)
    comm = trace.collectives
    assert len(trace.steps) == 50
    for step in trace.steps[2:]:
        reduced = (comm.step == step.step) & (comm.op == comm.code("all_reduce"))
        assert int(comm.nbytes[reduced].sum()) == 4 * (6 * (512 * 512 + 512) + 513)


def test_enabling_late_twice_or_again_leaves_nothing_behind(tmp_path: Path) -> None:
    launch(PROGRAMS / "lifecycle.py", args=[tmp_path]).check()
    ways = json.loads((tmp_path / "lifecycle.json").read_text())
    recordings = {"late": 1, "twice": 1, "again": 2, "in_process_group": 1}
    for way, count in recordings.items():
        assert ways[way]["changed_while_on"] > 0
        assert ways[way]["changed_after"] == []
        files = sorted((tmp_path / way).glob("*.rank00000.json"))
        assert len(files) == count, way
        for file in files:
            trace = read_trace(file)
            assert trace.trailer is not None
            assert len(trace.steps) == 3, file.name
            assert trace.trailer.failed_hooks == {}
            # Of the first step, too, though nothing communicates before its first backward.
            in_step = np.bincount(trace.collectives.step[trace.collectives.step >= 0])
            assert in_step.tolist() == [in_step[-1]] * 3, file.name
            assert [step.micro_steps for step in trace.steps] == [2, 2, 2]
