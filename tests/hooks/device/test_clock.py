"""What is known of a device's clock, in ns, worked out by hand."""

from __future__ import annotations

from dsprof.hooks.device.clock import DeviceClock, Mark


class Moment:
    """An event whose time on the device is given, in ns."""

    def __init__(self, at: int) -> None:
        self.at = at

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Moment) -> float:
        return (end.at - self.at) / 1e6


def mark(at: int, enqueued: int) -> Mark:
    made = Mark(Moment(at))
    made.at_ns = enqueued
    return made


def test_each_event_bounds_the_time_of_the_anchor() -> None:
    # The anchor was enqueued at 1000 and seen at 9000.
    clock = DeviceClock(mark(0, 1000), 9000)
    assert (clock.at(0), clock.bound_ns) == (1000, 8000)
    # 500 after it an event that was enqueued at 4000: the anchor was not before 3500.
    clock.learn(500, 4000, 9000)
    assert (clock.at(0), clock.bound_ns) == (3500, 5000)
    # 300 before it one that was seen at 4200: the anchor was not after 4500.
    clock.learn(-300, 0, 4200)
    assert (clock.at(0), clock.bound_ns) == (3500, 1000)
    assert clock.at(-300) == 3200


def test_a_new_anchor_keeps_what_is_known_less_what_clocks_may_run_apart() -> None:
    first = mark(0, 1_000_000)
    clock = DeviceClock(first, 1_000_500)
    later = mark(10_000_000, 0)
    assert clock.since(later) == 10_000_000
    assert clock.advance(later, 10**9) is first
    # 1e-4 of 10 ms is 1000 ns, to both sides.
    assert (clock.at(0), clock.bound_ns) == (10_999_000, 500 + 2 * 1000)


def test_clocks_that_contradict_are_tied_anew() -> None:
    clock = DeviceClock(mark(0, 1000), 1100)
    clock.learn(0, 2000, 2300)
    assert (clock.at(0), clock.bound_ns) == (2000, 300)
