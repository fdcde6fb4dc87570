from __future__ import annotations

import pytest

from dsprof.analysis.summarise import summarise
from dsprof.findings.finding import Finding, Status
from dsprof.rules.memory.emptied_device_cache import EmptiedDeviceCache
from dsprof.rules.runner import judge
from dsprof.trace.device_counters import FREED, RETRIES
from dsprof.trace.run import find_run
from tests.factories import snapshot as make
from tests.factories.memory import on_device
from tests.factories.trace import assert_reached_at, rank_trace, said

RULE = EmptiedDeviceCache()


def run(freed: list[int], retries: list[int] | None = None, rank: int = 0):
    tried = retries or [0] * len(freed)
    samples = zip(freed, tried, strict=True)
    return on_device(*({FREED: one, RETRIES: other} for one, other in samples), rank=rank)


def test_a_cache_emptied_in_each_step_fails():
    finding = said(RULE, run(list(range(0, 100, 10))), run([0] * 10, rank=1))
    assert finding.status is Status.FAIL
    assert finding.ranks == (0,)
    assert "returned 70 segments to the device, in 7 of 7 steps" in finding.summary
    assert "empty_cache" in finding.cause
    assert finding.evidence[0].rows == ((0, 7, 7, 70),)


@pytest.mark.parametrize(
    ("steps", "every", "status"),
    [(10, 2, Status.FAIL), (100, 4, Status.FAIL), (100, 9, Status.FAIL), (100, 13, Status.PASS)],
)
def test_a_cache_emptied_in_each_tenth_step_is_a_habit(steps, every, status):
    assert said(RULE, run([step // every * 30 for step in range(steps)])).status is status


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(
        RULE, run(list(range(0, 100, 10))), run([0] * 10, rank=1), steps=7, emptied_share=1.0
    )


@pytest.mark.parametrize(
    "trace",
    [
        run([0, 50, *[60] * 10]),
        run([0] * 6 + [40] * 6),
        run([0] * 4 + [40] * 3 + [80] * 3),
        run(list(range(0, 100, 10)), list(range(10))),
    ],
    ids=["warm-up", "once", "twice", "after retries"],
)
def test_what_is_no_habit_passes(trace):
    assert said(RULE, trace).status is Status.PASS


def test_an_emptied_cache_between_kept_steps_is_no_habit():
    """As a rolling recording keeps them: every eighth step, and the newest ones."""
    trace = run([step // 8 * 50 for step in range(100)])
    trace.memory = [one for one in trace.memory if one.step % 8 == 0 or one.step > 90]
    assert said(RULE, trace).status is Status.PASS


def test_it_does_not_apply_to_cpus():
    assert said(RULE, rank_trace()).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize("trace", [on_device(None), run([0, 1, 2, 3]), on_device({FREED: 1})])
def test_without_counters_it_cannot_tell(trace):
    assert said(RULE, trace).status is Status.UNKNOWN


def flushed(tmp_path, segments: int, flushes: int = 1, name: str = "") -> Finding:
    """Judge a history in which the allocator gave segments back, `name` on the call stack."""
    frames = [{"name": name, "filename": "/x/memory.py", "line": 1}] if name else []
    give_back = [make.event("segment_free", 1, 2, frames=frames)] * (segments // flushes)
    history = [*give_back, make.event("alloc", 1, 5)] * flushes
    path = make.write(tmp_path / "rank3.pickle", [make.segment(900)], history)
    [finding] = judge(summarise(find_run([path])), [RULE])
    return finding


def test_hundreds_of_returned_segments_in_a_snapshot_fail(tmp_path):
    finding = flushed(tmp_path, 300)
    assert (finding.status, finding.ranks) == (Status.FAIL, (3,))
    assert "300 segments (600 MiB)" in finding.summary
    assert "in 1 flush." in finding.summary
    assert finding.confidence == "low"  # no call stack shows who it was
    assert "no call stacks" in finding.cause
    traced = flushed(tmp_path, 300, name="forward")
    assert traced.confidence == "high"
    assert traced.cause.startswith("The device had no room")


def test_a_program_that_empties_the_cache_once_is_not_blamed(tmp_path):
    assert flushed(tmp_path, 300, name="empty_cache").status is Status.PASS
    finding = flushed(tmp_path, 300, flushes=10, name="empty_cache")
    assert "empty_cache()" in finding.cause
    assert "in 10 flushes" in finding.summary
    assert flushed(tmp_path, 50).status is Status.PASS
    least = RULE.thresholds.segments
    assert flushed(tmp_path, least).status is Status.FAIL
    assert flushed(tmp_path, least - 1).status is Status.PASS


def test_of_many_ranks_some_are_listed():
    many = (run(list(range(0, 100, 10)), rank=rank) for rank in range(33))
    assert len(said(RULE, *many).evidence[0].rows) == 32
