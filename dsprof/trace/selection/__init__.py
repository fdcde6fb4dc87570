"""Which part of a run is read: some of its ranks, hosts and steps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from dsprof.config.settings import in_one_line

OPEN_END = 1 << 62
"""A step that no run reaches."""
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Since(NamedTuple):
    """A time on the wall clock, or so long before the last step ended."""

    text: str
    before_end_ns: int = 0
    epoch_ns: int | None = None

    def __str__(self) -> str:
        """Say when."""
        return f"since {self.text}" if self.epoch_ns is not None else f"in the last {self.text}"


@dataclass(frozen=True, slots=True)
class Selection:
    """The part that is read; by default all."""

    ranks: tuple[range, ...] = ()
    hosts: frozenset[str] = frozenset()
    steps: range | None = None
    since: Since | None = None  # until `find_run` knows the steps
    epoch: int | None = None  # of the run, from 1; None: the last

    def holds_rank(self, rank: int) -> bool:
        """Say whether a rank is read, as far as its number tells."""
        return not self.ranks or any(rank in some for some in self.ranks)

    def holds_host(self, host: str) -> bool:
        """Say whether the ranks of a host are read."""
        return not self.hosts or host in self.hosts

    @property
    def has_all_ranks(self) -> bool:
        """Whether no rank is left out."""
        return not (self.ranks or self.hosts)

    def has_end_of(self, last_step: int) -> bool:
        """Say whether it has the end of a rank whose last step read is this one; -1: none."""
        if self.steps is None or self.steps.stop == OPEN_END:
            return True
        return 0 <= last_step < self.steps.stop - 1

    def __str__(self) -> str:
        """Say what is read; "" for all."""
        spans = [(some.start, some.stop - 1) for some in self.ranks]
        ranks = ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in spans)
        steps = self.steps or range(0)
        told = (
            ("rank", sum(map(len, self.ranks)), ranks),
            ("host", len(self.hosts), ", ".join(sorted(self.hosts))),
            ("step", len(steps), _numbers(steps)),
        )
        return "; ".join(f"{one}{'s' * (count > 1)} {text}" for one, count, text in told if count)


def _numbers(steps: range) -> str:
    if steps.stop == OPEN_END:
        return f"from {steps.start}"
    return f"{steps.start} to {steps.stop - 1}" if len(steps) > 1 else f"{steps.start}"


EVERYTHING = Selection()


def ranks_in(text: str) -> tuple[range, ...]:
    """Read `0-63,128`.

    Raises:
        ValueError: it is something else.
    """
    parts = [re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part) for part in text.split(",")]
    found = tuple(range(int(p[1]), int(p[2] or p[1]) + 1) for p in parts if p is not None)
    if len(found) < len(parts) or not all(found):
        raise ValueError(f"invalid ranks '{in_one_line(text)}': write 0-63 or 0-7,16")
    return found


def hosts_in(text: str) -> frozenset[str]:
    """Read `node1,node2`.

    Raises:
        ValueError: no name is in it.
    """
    found = frozenset(filter(None, text.split(",")))
    if not found:
        raise ValueError(f"invalid hosts '{in_one_line(text)}': write node1,node2")
    return found


def steps_in(text: str) -> range:
    """Read `1000:1200`: steps 1000 to 1199.

    Raises:
        ValueError: it is something else.
    """
    parts = re.fullmatch(r"(\d{1,18}):(\d{1,18})", text)
    found = range(int(parts[1]), int(parts[2])) if parts else range(0)
    if not found:
        example = "1000:1200 for steps 1000 to 1199"
        if re.fullmatch(r"\d{1,18}", text):
            example = f"{text}:{int(text) + 1} for step {text}"
        raise ValueError(f"invalid steps '{in_one_line(text)}': write {example}")
    return found


def since_in(text: str) -> Since:
    """Read `2h`, or a time such as `2026-11-24T10:00`, which is local unless it names its zone.

    Raises:
        ValueError: it is something else.
    """
    if parts := re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smhd])", text):
        return Since(text, before_end_ns=round(float(parts[1]) * _UNITS_S[parts[2]] * 1e9))
    try:
        # Before Python 3.11 no time may end in Z.
        epoch_s = datetime.fromisoformat(re.sub("Z$", "+00:00", text)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"invalid time '{in_one_line(text)}': write 30m, 2h or 2026-11-24T10:00"
        ) from None
    return Since(text, epoch_ns=round(epoch_s * 1e9))
