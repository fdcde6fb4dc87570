"""Counts of a run since its watching began."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from dsprof.errors import escaped
from dsprof.files.redaction import redact_text
from dsprof.live.recent import StepOfRank
from dsprof.trace.chunks import Chunk
from dsprof.trace.comm_rows import Rows
from dsprof.trace.lines import COMM_LINE, LINES

_FLUSH_LINE = LINES["flush"]

BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0)
"""Lengths up to which steps are counted."""

OTHERS = "others"
_MOST_GROUPS, _MOST_CAUSES = 200, 16
"""The first kinds that occur, this many, have a count of their own: if they were chosen anew, a
count could decrease."""

_MOST_HOSTS = 2048
_LONGEST = 200
"""Characters of a name that are kept."""

_READ = 5 * _LONGEST
"""Characters that are looked at: to redact ten megabytes takes seconds, at each step."""

_LARGEST_BYTES = 1 << 62

Kind = TypeVar("Kind")


@dataclass
class StepSums:
    """The steps of the ranks of one host."""

    lengths: Counter[int] = field(default_factory=Counter)  # place in `BUCKETS_S`, or behind it
    total_s: float = 0.0
    exposed_s: float | None = None  # of steps in which it is known; None: of none


class Totals:
    """Collectives by operation and group, and steps by host."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.nbytes: Counter[tuple[str, str]] = Counter()
        self.flushes: Counter[str] = Counter()  # by cause
        self.steps: defaultdict[str, StepSums] = defaultdict(StepSums)
        self._newest: dict[int, tuple[int, StepOfRank | None]] = {}
        """The newest step of each rank: it may still change, until it is counted (None)."""

    def add(self, chunk: Chunk, labels: Mapping[int, str]) -> None:
        """Count collectives that have ended, and flushes; `labels` are those of process groups."""
        for op, group, count, nbytes in _kinds(chunk.rows):
            self._add_calls(op, labels.get(group, ""), count, nbytes)
        for line in chunk.events:
            if type(line) is COMM_LINE:
                nbytes = min(line.args.nbytes, _LARGEST_BYTES)
                self._add_calls(line.name, labels.get(line.args.group, ""), 1, nbytes)
            elif type(line) is _FLUSH_LINE:
                cause = label(line.args.cause)
                self.flushes[_counted(cause, self.flushes, _MOST_CAUSES, OTHERS)] += 1

    def _add_calls(self, op: str, group: str, count: int, nbytes: int) -> None:
        what = label(op), label(group)
        what = _counted(what, self.calls, _MOST_GROUPS, (OTHERS, OTHERS))
        self.calls[what] += count
        self.nbytes[what] += nbytes

    def add_step(self, rank: int, number: int, found: StepOfRank, host: str) -> None:
        """Take a step of a rank; a later account of it replaces the one before."""
        newest, held = self._newest.get(rank, (-1, None))
        if newest < number:
            self.end(rank, host)
        if newest < number or (newest == number and held is not None):
            self._newest[rank] = number, found

    def end(self, rank: int, host: str) -> None:
        """Count the newest step of a rank, too: no later account of it comes."""
        number, held = self._newest.get(rank, (-1, None))
        if held is not None:
            self._count(host, held)
            self._newest[rank] = number, None

    def _count(self, host: str, found: StepOfRank) -> None:
        known = bounded(host, self.steps)
        sums, seconds = self.steps[known], found.total_ns / 1e9
        sums.lengths[bisect_left(BUCKETS_S, seconds)] += 1
        sums.total_s += seconds
        if found.exposed_ns is not None:
            sums.exposed_s = (sums.exposed_s or 0.0) + found.exposed_ns / 1e9


def bounded(host: str, hosts: Collection[str]) -> str:
    """Return as what a host is counted: by its name while `hosts`, those so far, are few."""
    name = label(host)
    return name if name in hosts or len(hosts) < _MOST_HOSTS else OTHERS


def label(name: str) -> str:
    """Return a name from a trace as others may read it: short, without secrets or controls."""
    return escaped(redact_text(name[:_READ]))[:_LONGEST]


def _counted(kind: Kind, counts: Counter[Kind], most: int, others: Kind) -> Kind:
    """Return as what a kind is counted: by itself while there are not too many."""
    return kind if kind in counts or len(counts) < most else others


def _kinds(rows: Rows) -> Iterator[tuple[str, int, int, int]]:
    """Yield each operation and number of a group, with how many calls and bytes it has."""
    groups, place = np.unique(rows.column("group"), return_inverse=True)
    kind = place * len(rows.words) + rows.column("op")
    sizes = np.bincount(kind, rows.column("nbytes").astype(float))  # each below 2**62
    for found, count in Counter(kind.tolist()).items():
        group, op = divmod(found, len(rows.words))
        yield rows.words[op], int(groups[group]), count, int(sizes[found])
