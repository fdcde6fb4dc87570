"""Blocked time, completion and overlap on gloo, against the clock of the program that waited.

Each scenario is repeated, and its least error counts: what else runs on the machine makes some
repetitions longer between the two clocks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsprof.analysis.rank.intervals import blocked, completion
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_trace
from tests.dist.launch import PROGRAMS, launch
from tests.dist.programs.delays import LATE_S

pytestmark = [pytest.mark.dist, pytest.mark.alone]

LATE_NS = LATE_S * 1e9
ONE_WAIT = (
    "sync", "async_", "async_waited_later", "async_waited_twice", "in_another_thread",
    "never_waited", "coalesced", "point_to_point", "sync_point_to_point",
    "batch_of_point_to_point", "functional_all_reduce", "functional_reduce_scatter",
    "functional_all_to_all", "functional_view", "functional_coalesced",
    "functional_in_another_thread", "functional_complete_before", "functional_compiled",
)  # fmt: skip
NOTHING_TO_WAIT_FOR = ("never_waited", "functional_complete_before")
DDP = ("ddp_plain", "ddp_bucket_view", "ddp_unused", "ddp_static_graph")


class Run:
    """What rank 0 recorded, and what it saw itself."""

    def __init__(self, folder: Path) -> None:
        [file] = (folder / "trace").glob("*.rank00000.json")
        self.trace: RankTrace = read_trace(file)
        self.truth: dict[str, Any] = json.loads((folder / "truth.json").read_text())
        self.rows = self.trace.collectives

    def of(self, scenario: str) -> np.ndarray:
        """The rows of a scenario, which has a group to itself."""
        [group] = [g.id for g in self.trace.groups.values() if g.label == scenario]
        return np.flatnonzero(self.rows.group == group)

    def blocked_ns(self, scenario: str) -> list[int]:
        """Blocked time of each repetition; they are as many as the program's own figures."""
        rows = self.of(scenario)
        start, end = blocked(self.rows)
        each = (end - start)[rows].reshape(len(self.truth[scenario]), -1)
        return [int(ns) for ns in each.sum(axis=1)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("time")
    launch(PROGRAMS / "delays.py", args=[folder], imported="torch").check()
    return Run(folder)


def test_sums_of_blocked_time_are_those_of_details(run: Run) -> None:
    start, end = blocked(run.rows)
    once = np.flatnonzero((run.rows.waits < 2) & ~run.rows.is_estimated)
    assert {False, True} == set(run.rows.is_async[once].tolist())
    assert run.rows.blocked_ns[once].tolist() == (end - start)[once].tolist()


@pytest.mark.parametrize("scenario", ONE_WAIT)
def test_blocked_time_is_what_the_program_saw(run: Run, scenario: str) -> None:
    truth = run.truth[scenario]
    recorded = run.blocked_ns(scenario)
    if scenario in NOTHING_TO_WAIT_FOR:
        assert min(recorded) < 0.05 * LATE_NS
    else:
        assert max(truth) > LATE_NS / 4, "the program itself must have waited"
        errors = [(t - r) / t for r, t in zip(recorded, truth, strict=True)]
        assert 0 <= min(errors) < 0.05, "the clock of the program is around that of dsprof"
    waited = run.rows.waits[run.of(scenario)] > 0
    assert (waited == (scenario != "never_waited")).all()


def test_every_wait_is_matched(run: Run) -> None:
    assert run.trace.trailer is not None
    assert run.trace.trailer.unmatched_waits == 0
    assert run.trace.trailer.failed_hooks == {}


def test_completion_lies_in_an_interval_no_wider_than_the_gap_between_two_hooks(run: Run) -> None:
    earliest, latest = completion(run.rows)
    origin = run.trace.header.started_monotonic_ns
    rows = run.of("completion")
    for row, truth in zip(rows, run.truth["completion"], strict=True):
        pending, done = truth["seen"]
        begin, end = earliest[row] + origin, latest[row] + origin
        assert begin <= done, "it was seen pending when it was done"
        assert pending <= end, "it was seen done when it was pending"
        hooks = truth["hooks"]
        assert begin >= max((start for start, stop in hooks if stop < pending), default=0)
        assert end <= min(stop for start, stop in hooks if start > done)


def test_a_wait_that_comes_later_overlaps_more_by_as_much(run: Run) -> None:
    start, end = blocked(run.rows)
    _, latest = completion(run.rows)
    overlapped = (latest - run.rows.issue_ns) - (end - start)
    for name in ("async_", "async_waited_later"):
        more_ns = overlapped[run.of(name)] - run.truth["head_starts"][name]
        assert 0 <= more_ns.min() < 3e6, "it overlaps while the program sleeps"


@pytest.mark.parametrize("scenario", DDP)
def test_the_hidden_wait_of_ddp_is_estimated(run: Run, scenario: str) -> None:
    """Against the program's clock, from the last gradient to the end, and the reducer's own."""
    rows, all_reduce = run.rows, run.rows.code("all_reduce")
    passes = np.cumsum(rows.op == rows.code("barrier"))  # each begins with a barrier
    for oracle in ("own", "torch"):
        errors = []
        for number, truth in enumerate(run.truth[scenario]):
            mine = [r for r in run.of(scenario) if rows.op[r] == all_reduce]
            first = passes[mine[0]]
            reduced = [r for r in mine if passes[r] == first + number]
            assert rows.is_estimated[reduced].all()
            assert (rows.waits[reduced] == 1).all()
            errors.append(abs(int(rows.blocked_ns[reduced].sum()) - truth[oracle]) / truth[oracle])
        assert min(errors[1:]) < 0.05, oracle


def test_the_wait_of_ddp_is_for_gradients_and_not_for_the_map_of_used_parameters(run: Run) -> None:
    rows = run.rows
    mine = run.of("ddp_unused")
    maps = [r for r in mine if rows.dtype[r] == rows.code("int32")]
    assert maps, "find_unused_parameters sends a map in each backward"
    assert (rows.waits[maps] == 1).all()
    assert not rows.blocked_ns[maps].any()
