"""slow-link: like groups send the same, and one takes longer for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import NamedTuple

import numpy as np

from dsprof.analysis.aggregates.arrivals import FAMILIES, Arrivals
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.alignment.matching import Matched
from dsprof.analysis.rank.group_by import group_rows
from dsprof.analysis.run.lateness import held
from dsprof.analysis.run.outliers import low_outliers
from dsprof.analysis.run.transfer_speed import of_the_last
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import duration, named, percent
from dsprof.rules.communication.late_rank_causes import LINK_OF_CPUS, LINK_TOOLS
from dsprof.rules.reasons import NO_ARRIVALS
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.savings import about

_ROWS = 16
_WIDE = 0.5
"""A gap of this share of the range of all is wider than the others are apart: each is a median."""
_Ranks = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a group is called slow."""

    groups: int = 2  # that are alike; nothing makes a link faster than it is, so one is slow
    ratio: float = 1.5  # its transfer / the median of the others
    step_share: float = 0.02  # of the step: what it takes longer than the others
    severe_share: float = 0.2


class SlowLink(Rule):
    """Compares groups of the same size and role in collectives of the same operation and bytes."""

    meta = RuleMeta(
        id="slow-link",
        title="No group stands out by its median transfer",
        failing_title="A group is slower than others that send the same",
        why="Every other group waits for the one on the slow link in their next common collective.",
        category="communication",
        order=95,
        needs=(Arrivals, Run, Steps),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Name the ranks of the slow groups, and those that all of these have in common."""
        steps = run[Steps]
        matched = run[Arrivals].matched
        kinds = {
            kind: rows
            for kind, rows in transfers(matched, steps.measured).items()
            if len(rows) >= thresholds.groups
        }
        if not kinds:
            yield self._nothing_to_compare(run, bool(matched))
            return
        slow = _slow(kinds, thresholds)
        costs = {
            ranks: sum(one.excess_ns for one in found) / len(steps.measured)
            for ranks, found in slow.items()
        }
        worst = max(costs, key=lambda ranks: costs[ranks], default=())
        if worst and costs[worst] >= thresholds.step_share * steps.mean_ns:
            yield self._finding(run, slow, worst, costs[worst], thresholds)

    def _nothing_to_compare(self, run: RunSummary, has_matched: bool) -> Finding:
        if run[Run].first.world_size < 2 or not has_matched:
            return self.meta.not_applicable(NO_ARRIVALS)
        return self.meta.not_applicable(
            "No two groups send the same collectives. Within one group a slow link slows all "
            "ranks alike, so times do not show which link it is."
        )

    def _finding(
        self,
        run: RunSummary,
        slow: Mapping[_Ranks, Sequence[_Excess]],
        worst: _Ranks,
        cost_ns: float,
        thresholds: Thresholds,
    ) -> Finding:
        steps = run[Steps]
        common = sorted(set.intersection(*(set(ranks) for ranks in slow)))
        has_common = bool(common) and len(slow) > 1
        suspects = tuple(common) if has_common else worst
        fixed = slow if has_common else [worst]
        # Of recorded calls, only those count that blocked; of kernels of a profile this is unknown.
        lost_ns = saving = None
        if run[Run].is_recorded:
            lost_ns = _lost_ns(run[Arrivals].matched, fixed, steps.measured, cost_ns)
            saving = None if lost_ns is None else about(lost_ns / 1e6)
        lost_ns = cost_ns if lost_ns is None else lost_ns
        is_lost, share = lost_ns >= thresholds.step_share * steps.mean_ns, lost_ns / steps.mean_ns
        cause = (
            f"All {len(slow)} slow groups have {named(suspects)} in common."
            if has_common
            else "One group does not show which of its links or ranks is slow."
        )
        is_of_two = all(one.of_two for one in slow[worst])
        fix = "Compare adapters and ports"
        action = (
            "Compare adapters, cables, port errors and the placement of these ranks with those of "
            f"the other groups {LINK_TOOLS}, and measure the link with dsprof bench."
        )
        if run[Run].is_cpu and all(one.kind.nodes == 1 for one in slow[worst]):
            fix, action = LINK_OF_CPUS.fix, LINK_OF_CPUS.action.format(ranks=named(suspects))
        as_late = "" if is_lost else " Steps are hardly longer: other ranks are as late."
        cost = f"take {duration(cost_ns)} longer per step"
        if is_lost:
            cost = f"delay a step by {duration(lost_ns)}"
        return self.meta.finding(
            Status.FAIL if is_lost else Status.INFO,
            f"Collectives among {named(worst)} take {duration(cost_ns)} per step "
            f"({percent(cost_ns / steps.mean_ns)}) longer than the same in other groups, after all "
            f"ranks have arrived.{as_late}",
            severity=Severity.HIGH if share >= thresholds.severe_share else Severity.MEDIUM,
            cause=f"{cause} These times exclude waits for late ranks.",
            problem=f"Collectives of {named(worst)} {cost}",
            fix=fix,
            action=action,
            ranks=suspects,
            evidence=(_table(slow),),
            saving_ms_per_step=saving,
            explains_ms=0.0 if saving else lost_ns / 1e6,
            confidence="medium" if has_common or not is_of_two else "low",
        )


class _Excess(NamedTuple):
    """By what all calls of a kind take longer in a group than usual."""

    kind: Kind
    row: Transfer
    usual_ns: float
    excess_ns: float
    of_two: bool  # groups


def _slow(
    kinds: Mapping[Kind, Sequence[Transfer]], thresholds: Thresholds
) -> dict[_Ranks, list[_Excess]]:
    """Return groups far slower than their like.

    Of a group that is slow in most of its calls, the median would count those that are not.
    """
    found: defaultdict[_Ranks, list[_Excess]] = defaultdict(list)
    for kind, rows in kinds.items():
        of_two = len(rows) == 2
        medians = np.array([row.median_ns for row in rows], np.int64)
        # Of two, that of the faster one.
        usual, usual_mean = median_low(medians.tolist()), median_low(row.mean_ns for row in rows)
        for place in np.flatnonzero(
            low_outliers(-medians, (thresholds.ratio - 1) * usual, most=_WIDE)
        ).tolist():
            row = rows[place]
            if of_two and row.low_ns <= rows[1 - place].high_ns:
                continue  # how far others differ is unknown: only that single calls do so, too
            more_ns = max(min(row.median_ns - usual, row.mean_ns - usual_mean), 0.0)
            found[row.ranks].append(_Excess(kind, row, usual, more_ns * row.calls, of_two))
    return dict(found)


def _lost_ns(
    matched: Iterable[Matched], slow: Collection[_Ranks], steps: Sequence[int], cost_ns: float
) -> float | None:
    """Return by how much a step is longer for slow groups that take `cost_ns` longer in it.

    By no more than all others are held longer where they meet their ranks, step by step: in some
    steps the link may be as fast. Each rank is held by its own clock, so clocks are not compared.
    None: they do not meet.
    """
    late = {rank for some in slow for rank in some}
    ranks, held_ns = held([one for one in matched if late < {*one.ranks}], steps)
    if not held_ns.size:
        return None
    mine = np.isin(ranks, [*late])
    longer_ns = held_ns[~mine].min(axis=0) - held_ns[mine].min(axis=0)
    return min(float(longer_ns.clip(0).mean()), cost_ns)


def _table(slow: Mapping[_Ranks, Sequence[_Excess]]) -> Table:
    rows = [(ranks, one) for ranks, found in slow.items() for one in found]
    rows.sort(key=lambda row: -row[1].excess_ns)
    return Table(
        columns=(
            Column("group"),
            Column("collective"),
            Column("bytes", "bytes"),
            Column("calls", "count"),
            Column("transfer", "ns"),
            Column("in similar groups", "ns"),
        ),
        rows=tuple(
            (
                named(ranks),
                FAMILIES[one.kind.op],
                one.kind.nbytes,
                one.row.calls,
                one.row.median_ns,
                round(one.usual_ns),
            )
            for ranks, one in rows[:_ROWS]
        ),
        caption="From the last arrival to the end, medians",
    )


LEAST_CALLS = 5


class Kind(NamedTuple):
    """Groups are compared that have this in common."""

    op: int  # place in FAMILIES of the aggregate
    nbytes: int
    size: int
    role: str
    nodes: int  # groups inside a node are not compared with groups across nodes


@dataclass(frozen=True, slots=True)
class Transfer:
    """One kind of collective in one group."""

    ranks: tuple[int, ...]
    label: str
    calls: int  # of the steps asked for, of one rank
    low_ns: int  # lower quartile
    median_ns: int
    high_ns: int  # upper quartile
    mean_ns: float


def transfers(matched: Iterable[Matched], steps: Sequence[int]) -> dict[Kind, list[Transfer]]:
    """Return the transfers of each kind that a group has at least five of, group by group."""
    found: defaultdict[Kind, list[Transfer]] = defaultdict(list)
    for one in matched:
        op, nbytes, took = of_the_last(one, steps)
        if not len(op):
            continue
        kinds = group_rows([op, nbytes])
        for number, first in enumerate(kinds.first):
            mine = took[kinds.of_row == number]
            if len(mine) >= LEAST_CALLS:
                what = int(op[first]), int(nbytes[first])
                kind = Kind(*what, one.group.size, one.group.role, one.nodes)
                calls = round(len(mine) * one.weight(steps))
                low, median, high = map(int, np.percentile(mine, (25, 50, 75)))
                mean = float(mine.mean())
                row = Transfer(one.ranks, one.group.label, calls, low, median, high, mean)
                found[kind].append(row)
    return dict(found)
