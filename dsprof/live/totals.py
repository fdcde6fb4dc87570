"""Counts of a run since its watching began."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dsprof.live.recent import StepOfRank
from dsprof.trace.lines import COMM_LINE, LINES, Line

_FLUSH_LINE = LINES["flush"]

BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0)
"""Lengths up to which steps are counted."""


@dataclass
class StepSums:
    """The steps of the ranks of one host."""

    lengths: Counter[int] = field(default_factory=Counter)  # place in `BUCKETS_S`, or behind it
    total_s: float = 0.0
    exposed_s: float = 0.0


class Totals:
    """Collectives by operation and group, and steps by host."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.nbytes: Counter[tuple[str, str]] = Counter()
        self.flushes: Counter[str] = Counter()  # by cause
        self.steps: defaultdict[str, StepSums] = defaultdict(StepSums)
        self._newest: dict[int, tuple[int, StepOfRank]] = {}  # of each rank: it may still change

    def add_lines(self, lines: Iterable[Line], labels: Mapping[int, str]) -> None:
        """Count collectives that have ended, and flushes; `labels` are those of process groups."""
        for line in lines:
            if type(line) is COMM_LINE:
                what = line.name, labels.get(line.args.group, "")
                self.calls[what] += 1
                self.nbytes[what] += line.args.nbytes
            elif type(line) is _FLUSH_LINE:
                self.flushes[line.args.cause] += 1

    def add_step(self, rank: int, number: int, found: StepOfRank, host: str) -> None:
        """Take a step of a rank; a later account of it replaces the one before."""
        before = self._newest.get(rank)
        if before is not None and before[0] < number:
            self._count(host, before[1])
        if before is None or before[0] <= number:
            self._newest[rank] = number, found

    def _count(self, host: str, found: StepOfRank) -> None:
        sums, seconds = self.steps[host], found.total_ns / 1e9
        sums.lengths[bisect_left(BUCKETS_S, seconds)] += 1
        sums.total_s += seconds
        sums.exposed_s += (found.exposed_ns or 0) / 1e9
