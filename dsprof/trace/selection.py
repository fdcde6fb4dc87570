"""Which part of a run is read: some of its ranks, hosts and steps."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Selection:
    """The part that is read; by default all."""

    ranks: tuple[range, ...] = ()
    hosts: frozenset[str] = frozenset()
    steps: range | None = None
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

    def __str__(self) -> str:
        """Say what is read; "" for all."""
        spans = [(some.start, some.stop - 1) for some in self.ranks]
        ranks = ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in spans)
        told = {
            "ranks": ranks,
            "hosts": ", ".join(sorted(self.hosts)),
            "steps": f"{self.steps.start} to {self.steps.stop - 1}" if self.steps else "",
        }
        return "; ".join(f"{name} {text}" for name, text in told.items() if text)


EVERYTHING = Selection()


def ranks_in(text: str) -> tuple[range, ...]:
    """Read `0-63,128`.

    Raises:
        ValueError: it is something else.
    """
    parts = [re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part) for part in text.split(",")]
    found = tuple(range(int(p[1]), int(p[2] or p[1]) + 1) for p in parts if p is not None)
    if len(found) < len(parts) or not all(found):
        raise ValueError(f"invalid ranks '{text}': write 0-63 or 0-7,16")
    return found


def hosts_in(text: str) -> frozenset[str]:
    """Read `node1,node2`.

    Raises:
        ValueError: no name is in it.
    """
    found = frozenset(filter(None, text.split(",")))
    if not found:
        raise ValueError(f"invalid hosts '{text}': write node1,node2")
    return found


def steps_in(text: str) -> range:
    """Read `1000:1200`: steps 1000 to 1199.

    Raises:
        ValueError: it is something else.
    """
    parts = re.fullmatch(r"(\d{1,18}):(\d{1,18})", text)
    found = range(int(parts[1]), int(parts[2])) if parts else range(0)
    if not found:
        raise ValueError(f"invalid steps '{text}': write 1000:1200 for steps 1000 to 1199")
    return found
