"""Where on the host's clock the events of a device lie, without ever waiting for the device.

Between two events of a device its own clock tells the time exactly. What ties it to the host are
two facts about each event: the device passed it no earlier than the host enqueued it, and no later
than the host first saw it passed. Moved to one common event, the anchor, all these facts together
bound one number, the time of the anchor:

    max(enqueued_i - since_i) <= anchor <= min(seen_i - since_i)

where since_i is the time from the anchor to event i. The lower bound is tight as soon as one event
was enqueued on an idle stream, so it is taken as the estimate: an event may have been passed later
than said, by at most `bound_ns`, never earlier.
"""

from __future__ import annotations

from dsprof.hooks.device.device import Event

DRIFT = 1e-4
"""Two clocks may run apart by so much; crystals do by some 1e-5."""


class Mark:
    """An event in a stream, and when the host enqueued it."""

    __slots__ = ("at_ns", "event", "key")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.key = (0, 0)
        self.at_ns = 0


class DeviceClock:
    """Ties one device to the host's clock."""

    def __init__(self, anchor: Mark, seen_ns: int) -> None:
        self._anchor = anchor
        self._low_ns = anchor.at_ns
        self._high_ns = seen_ns

    @property
    def bound_ns(self) -> int:
        """How much later than `at` an event may have been."""
        return self._high_ns - self._low_ns

    def since(self, mark: Mark) -> int:
        """Return the time from the anchor to a mark that was passed, in ns."""
        return elapsed_ns(self._anchor, mark)

    def learn(self, since_ns: int, enqueued_ns: int, seen_ns: int) -> None:
        """Take in that an event, `since_ns` after the anchor, was passed between two times."""
        low = max(self._low_ns, enqueued_ns - since_ns)
        high = min(self._high_ns, seen_ns - since_ns)
        if low > high:  # the clocks ran apart by more than was allowed for
            low, high = enqueued_ns - since_ns, seen_ns - since_ns
        self._low_ns, self._high_ns = low, high

    def at(self, since_ns: int) -> int:
        """Return the earliest host time at which an event can have been passed."""
        return self._low_ns + since_ns

    def advance(self, mark: Mark, seen_ns: int) -> Mark:
        """Make a later mark the anchor, for differences lose digits as they grow.

        Returns:
            The anchor before, which is needed no more.
        """
        before, since_ns = self._anchor, self.since(mark)
        drift_ns = int(abs(since_ns) * DRIFT)
        self._anchor = mark
        self._low_ns += since_ns - drift_ns
        self._high_ns += since_ns + drift_ns
        self.learn(0, mark.at_ns, seen_ns)
        return before


def elapsed_ns(start: Mark, end: Mark) -> int:
    """Return the device's time from one mark to the other, in ns."""
    return round(start.event.elapsed_time(end.event) * 1e6)
