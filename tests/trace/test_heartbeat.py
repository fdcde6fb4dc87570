"""A silent process writes a heartbeat every few seconds, and never two within one."""

from __future__ import annotations

from itertools import pairwise

from dsprof.trace.writing.heartbeat import Silence

SECOND = 1_000_000_000


def beats(silence: Silence, start_s: int, end_s: int) -> list[float]:
    """The seconds at which one is due, if it is asked every 0.1 s."""
    tenths = range(start_s * 10, end_s * 10)
    return [tenth / 10 for tenth in tenths if silence.is_due(tenth * SECOND // 10)]


def test_intervals_grow_from_one_second_to_five() -> None:
    found = beats(Silence(0), 0, 3600)
    assert found[:3] == [1.0, 2.0, 3.0]
    intervals = [later - earlier for earlier, later in pairwise(found)]
    assert min(intervals) > 0.95
    assert max(intervals) < 5.15
    assert intervals[-1] > 4.95


def test_what_happens_starts_the_silence_again() -> None:
    silence = Silence(0)
    beats(silence, 0, 100)
    silence.broken(100 * SECOND)
    assert beats(silence, 100, 102)[0] == 101.0
