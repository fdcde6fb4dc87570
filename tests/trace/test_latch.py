"""An event that threads of the recorder wait for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from dsprof.trace.latch import Latch

LONG_S = 60.0


def test_a_wait_ends_without_it_at_its_time() -> None:
    latch = Latch()
    assert not latch.wait(0.001)
    assert not latch.is_set


def test_all_waits_end_with_it_and_those_to_come() -> None:
    latch = Latch()
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(latch.wait, LONG_S) for _ in range(3)]
        latch.set()
        assert all(one.result(LONG_S / 2) for one in waiting)
    assert latch.wait(LONG_S)


def test_it_may_be_set_again() -> None:
    latch = Latch()
    latch.set()
    latch.set()
    assert latch.is_set
    assert latch.wait(LONG_S)


def test_a_nudge_ends_one_wait_and_no_other() -> None:
    latch = Latch()
    for _ in range(2):
        latch.nudge()
    assert not latch.wait(LONG_S)
    assert not latch.wait(0.001)
    assert not latch.is_set
