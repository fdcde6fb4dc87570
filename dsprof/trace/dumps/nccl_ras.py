"""Output of `ncclras`: communicators whose ranks differ, or do not answer."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

START = re.compile(r"^Job summary\s*\n=+", re.MULTILINE)
_HEAD = re.compile(r"#(\d+-\d+) \([0-9a-f]+\) (\w+)")
_OPERATION = re.compile(r"Communicator ranks have different (?:(\w+) )?operation counts")
_COUNT = re.compile(r"(\d{1,18}) ranks? (?:has|have) launched up to operation (\d{1,18})")
_MISSING = re.compile(r"Missing communicator data from (\d+) ranks?")
_RANK = re.compile(r"Rank (\d{1,18}) -- ")
_MOST = 100_000


@dataclass(slots=True)
class Count:
    """So many ranks have called so many operations; RAS names them where they are few."""

    ranks: int
    operations: int
    named: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Communicator:
    """A communicator of which RAS says that something is wrong; ranks are numbered in it."""

    name: str
    op: str = ""
    counts: list[Count] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)  # did not answer

    @property
    def behind(self) -> Count | None:
        """The ranks that have called least, where others have called more."""
        ordered = sorted(self.counts, key=lambda count: count.operations)
        return ordered[0] if len(ordered) > 1 else None


def communicators(text: str) -> list[Communicator]:
    """Return the communicators with errors or warnings."""
    found: list[Communicator] = []
    named: list[int] = []
    for line in map(str.strip, text.splitlines()):
        if head := _HEAD.match(line):
            found.append(Communicator(head[1]))
            named = []
        elif not found:
            continue
        elif operation := _OPERATION.match(line):
            found[-1].op = operation[1] or ""
        elif count := _COUNT.match(line):
            found[-1].counts.append(Count(int(count[1]), int(count[2]), named := []))
        elif _MISSING.match(line):
            named = found[-1].missing
        elif (rank := _RANK.match(line)) and len(named) < _MOST:
            named.append(int(rank[1]))
    return [one for one in found if one.behind or one.missing]
