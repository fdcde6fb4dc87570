from __future__ import annotations

from itertools import pairwise

from dsprof.trace.heartbeat import Heartbeat

SECOND = 1_000_000_000


def beats(heartbeat: Heartbeat, start_s: int, end_s: int) -> list[float]:
    """The seconds at which one is due, if it is asked every 0.1 s."""
    tenths = range(start_s * 10, end_s * 10)
    return [tenth / 10 for tenth in tenths if heartbeat.is_due(tenth * SECOND // 10)]


def test_beats_get_rarer_as_the_silence_grows() -> None:
    found = beats(Heartbeat(0), 0, 86_400)
    assert found[:3] == [1.0, 1.3, 1.7]
    assert len(found) < 60
    assert max(later / earlier for earlier, later in pairwise(found)) < 1.4


def test_what_happens_starts_the_silence_again() -> None:
    heartbeat = Heartbeat(0)
    beats(heartbeat, 0, 100)
    heartbeat.busy(100 * SECOND)
    assert beats(heartbeat, 100, 102)[0] == 101.0
