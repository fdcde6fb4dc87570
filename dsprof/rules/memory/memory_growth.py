"""memory-growth: each step leaves more memory in use than the one before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np

from dsprof.analysis.aggregates.memory import Memory, RankMemory
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import named, plural, size
from dsprof.rules.causes import KEPT
from dsprof.rules.evidence.allocator import Series, device_series, host_series
from dsprof.rules.evidence.growth import slows_down
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.trace.device_counters import ALLOCATED, DEVICE_TOTAL, RESERVED

_PARTS = 4
_NOISE_SHARE = 1 / 8
"""Between two quarters the least changes by so much of the whole growth without meaning."""
_MOST_PARTS, _OF_PART = 16, 5
"""Parts whose minima tell the rate, and samples of each at least."""
_NEW = "New processes may only be growing to their usual size; otherwise the"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When growth is no chance."""

    steps: int = 20  # after warm-up; fewer do not tell
    host_steps: int = 100  # until a new process has its usual size on the host
    grown_bytes: int = 64 << 20  # between the first and the last quarter of the run
    grown_share: float = 0.01  # of what was in use in the first quarter

    @property
    def of_quarter(self) -> int:
        """How many of the steps a quarter of the run needs."""
        return max(self.steps // _PARTS, 1)


class _Growth(NamedTuple):
    rank: int
    first_bytes: int  # least in use in the last quarter before the growth, or in the first
    last_bytes: int  # and in the last of all
    per_step: float
    room_bytes: int | None  # left on the device at the end, on the host at its minimum
    others_per_step: float = 0.0  # bytes by which others in the same memory grow

    @property
    def steps_left(self) -> float | None:
        if self.room_bytes is None:
            return None
        return self.room_bytes / (self.per_step + self.others_per_step)


class MemoryGrowth(Rule):
    """Compares the least memory in use in each quarter of the run.

    The least tells what is never given back, whatever comes and goes between. Growth that slows
    down is a cache that fills up, not a leak. Quarters are of the numbers of steps: a rolling
    recording holds all of the newest steps and few of earlier ones.
    """

    meta = RuleMeta(
        id="memory-growth",
        title="Memory in use does not grow from step to step",
        failing_title="Memory grows from step to step",
        why="Memory that grows with each step ends the run with an out-of-memory error after "
        "hours or days.",
        category="memory",
        leads=True,
        order=460,
        needs=(Memory, Run),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Judge the device and the host, each by itself."""
        ranks = run[Memory].ranks
        longest, spanned, is_known = 0, 0, False
        device, host = list[_Growth](), list[_Growth]()
        for rank, memory in ranks.items():
            for series, room_bytes, found in (
                (device_series(memory, ALLOCATED), _device_room(memory), device),
                (host_series(memory), memory.least_host_available_bytes, host),
            ):
                longest = max(longest, len(series.step))
                if len(series.step):
                    spanned = max(spanned, int(np.ptp(series.step)) + 1)
                quarters = _full_quarters(series, thresholds)
                is_known = is_known or quarters is not None
                if quarters and (grown := _growth(rank, quarters, room_bytes, thresholds)):
                    found.append(grown)
        if not is_known:
            yield self.meta.unknown(_too_few(longest, thresholds))
            return
        if device:
            yield self._finding(
                device,
                "Device memory grows from step to step",
                "Tensors of one step are still referenced in the next: usually losses or outputs "
                "that keep their autograd graph.",
                "Keep numbers, not tensors: loss.item() every N steps, or loss.detach(). A memory "
                "snapshot (torch.cuda.memory._record_memory_history) shows the lines that "
                "allocate them.",
                restates=KEPT,
            )
        if host:
            is_new = spanned < thresholds.host_steps
            yield self._finding(
                _sharing_hosts(host, run[Run]),
                "Host memory grows from step to step",
                f"{_NEW if is_new else 'The'} processes keep more with each step (result lists, "
                "data set caches, pinned buffers of new sizes), or tensors of varying sizes "
                "fragment the heap of glibc.",
                f"{f'Record {thresholds.host_steps} steps. ' * is_new}"
                "Run once with MALLOC_MMAP_THRESHOLD_=131072. If memory then stops growing, the "
                "heap was fragmented: keep the variable. Otherwise compare tracemalloc snapshots "
                "taken 100 steps apart, and run once without the data loader.",
                status=Status.INFO if is_new else Status.FAIL,
            )

    def _finding(
        self,
        grown: list[_Growth],
        title: str,
        cause: str,
        action: str,
        restates: str = "",
        status: Status = Status.FAIL,
    ) -> Finding:
        worst = max(grown, key=lambda one: one.per_step)
        left = worst.steps_left
        ends = (
            f" At this rate memory is exhausted in {plural(round(left), 'step')}."
            if left is not None
            else ""
        )
        return self.meta.finding(
            status,
            f"Rank {worst.rank} uses {size(worst.per_step)} more with each step; growth is steady "
            f"on {named([one.rank for one in grown])}.{ends}",
            title=title,
            severity=Severity.MEDIUM,
            cause=cause,
            action=action,
            ranks=tuple(one.rank for one in grown),
            evidence=(_table(grown),),
            restates=restates,
            confidence="medium",
        )


def device_growth(memory: RankMemory, least_bytes: float) -> float | None:
    """Return by how many bytes a step device memory grows; None if by less in all, or not known."""
    thresholds = MemoryGrowth.thresholds
    quarters = _full_quarters(device_series(memory, ALLOCATED), thresholds)
    found = _growth(0, quarters, None, thresholds) if quarters else None
    return found.per_step if found and found.last_bytes - found.first_bytes >= least_bytes else None


def _device_room(memory: RankMemory) -> int | None:
    last = memory.device_last
    known = DEVICE_TOTAL in last and RESERVED in last
    return max(0, last[DEVICE_TOTAL] - last[RESERVED]) if known else None


def _sharing_hosts(grown: list[_Growth], run: Run) -> list[_Growth]:
    """Tell each rank how the others on its host grow: they use up the same memory."""
    totals: defaultdict[str, float] = defaultdict(float)
    for one in grown:
        totals[run.hosts[one.rank]] += one.per_step
    return [
        one._replace(others_per_step=totals[run.hosts[one.rank]] - one.per_step) for one in grown
    ]


def _too_few(longest: int, thresholds: Thresholds) -> str:
    if not longest:
        return "Unknown: memory was not recorded at the ends of steps."
    if longest < thresholds.steps:
        return (
            f"Unknown: memory was recorded after {plural(longest, 'step')}; "
            f"{thresholds.steps} steps are needed."
        )
    return (
        "Unknown: in a quarter of the run, memory was recorded after fewer than "
        f"{plural(thresholds.of_quarter, 'step')}."
    )


def _full_quarters(series: Series, thresholds: Thresholds) -> list[Series] | None:
    """Split a series by the numbers of steps; None if it has too few of them."""
    if len(series.step) < thresholds.steps:
        return None
    first, last = int(series.step[0]), int(series.step[-1])
    part = (series.step - first) // max((last - first + 1) // _PARTS, 1)
    quarters = [Series(*(column[part == n] for column in series)) for n in range(_PARTS)]
    return quarters if min(len(one.step) for one in quarters) >= thresholds.of_quarter else None


def _growth(
    rank: int, quarters: list[Series], room_bytes: int | None, thresholds: Thresholds
) -> _Growth | None:
    """Return how a series grows; None if it falls by more than noise, or slows down."""
    least = [int(one.value.min()) for one in quarters]
    rises = [after - before for before, after in pairwise(least)]
    total = sum(rises)
    noise = total * _NOISE_SHARE
    needed = max(thresholds.grown_bytes, thresholds.grown_share * least[0])
    if min(rises) < -noise or total < needed:
        return None
    # Growth that begins late has the rate of what follows.
    first = max(n for n, value in enumerate(least) if value - least[0] <= noise)
    mean = total / (len(rises) - first)
    # What grows is least where a quarter begins: the minimum of the last says nothing of its end.
    if rises[-1] < mean / 2 or _rise_within(quarters[-1]) < mean / 4:
        return None
    if slows_down(rises[first:]):
        return None
    begin, end = (_last_step_at_least(quarters[at]) for at in (first, -1))
    # It may begin anywhere in that quarter.
    per_step = _slope(quarters[first + 1 :]) or (least[-1] - least[first]) / (end - begin)
    return _Growth(rank, least[first], least[-1], per_step, room_bytes)


def _last_step_at_least(quarter: Series) -> int:
    return int(quarter.step[quarter.value == quarter.value.min()][-1])


def _slope(quarters: Sequence[Series]) -> float:
    """Return the median slope between the minima of parts (Theil-Sen); 0 if not positive."""
    step, value = (np.concatenate(column) for column in zip(*quarters, strict=True))
    parts = np.array_split(np.arange(len(step)), max(2, min(_MOST_PARTS, len(step) // _OF_PART)))
    lows = [part[np.argmin(value[part])] for part in parts]
    slopes = [
        (value[after] - value[before]) / (step[after] - step[before])
        for before, after in combinations(lows, 2)
    ]
    return max(float(np.median(slopes)), 0.0)


def _rise_within(quarter: Series) -> int:
    """Return by how much the least of the second half of its steps exceeds that of the first."""
    middle = (int(quarter.step[0]) + int(quarter.step[-1])) / 2
    early, late = quarter.step <= middle, quarter.step >= middle
    return int(quarter.value[late].min()) - int(quarter.value[early].min())


def _table(grown: list[_Growth]) -> Table:
    return Table(
        columns=(
            Column("rank"),
            Column("least before the growth", "bytes"),
            Column("least in the last quarter", "bytes"),
            Column("growth per step", "bytes"),
            Column("free", "bytes"),
        ),
        rows=tuple(
            (one.rank, one.first_bytes, one.last_bytes, round(one.per_step), one.room_bytes)
            for one in sorted(grown, key=lambda one: -one.per_step)[:32]
        ),
        caption="In use at the ends of steps, after warm-up",
    )
