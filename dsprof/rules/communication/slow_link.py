"""slow-link: like groups send the same, and one takes longer for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dsprof.analysis.aggregates.arrivals import FAMILIES, Arrivals
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.alignment.matching import Matched
from dsprof.analysis.rank.group_by import group_rows
from dsprof.analysis.run.outliers import low_outliers
from dsprof.analysis.run.transfer_speed import of_the_last
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Range, Severity, Status, Table
from dsprof.findings.wording import duration, named, percent
from dsprof.rules.communication.late_rank_causes import LINK_OF_CPUS
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

    groups: int = 3  # that are alike; of two, either may be the slow one
    ratio: float = 1.5  # its transfer / the median of the others
    step_share: float = 0.02  # of the step: what it takes longer than the others
    severe_share: float = 0.2


class SlowLink:
    """Compares groups of the same size and role in collectives of the same operation and bytes."""

    meta = RuleMeta(
        id="slow-link",
        title="Groups that send the same take the same time",
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
            ranks: sum(excess for _, _, excess in found) / len(steps.measured)
            for ranks, found in slow.items()
        }
        worst = max(costs, key=lambda ranks: costs[ranks], default=())
        if worst and costs[worst] >= thresholds.step_share * steps.mean_ns:
            yield self._finding(run, kinds, slow, worst, costs[worst], thresholds)

    def _nothing_to_compare(self, run: RunSummary, has_matched: bool) -> Finding:
        if run[Run].first.world_size < 2 or not has_matched:
            return self.meta.not_applicable(NO_ARRIVALS)
        return self.meta.not_applicable(
            "Fewer than three groups send the same collectives. Within one group a slow link "
            "slows all ranks alike, so times do not show which link it is."
        )

    def _finding(
        self,
        run: RunSummary,
        kinds: Mapping[Kind, Sequence[Transfer]],
        slow: Mapping[_Ranks, Sequence[tuple[Kind, Transfer, float]]],
        worst: _Ranks,
        cost_ns: float,
        thresholds: Thresholds,
    ) -> Finding:
        share = cost_ns / run[Steps].mean_ns
        common = sorted(set.intersection(*(set(ranks) for ranks in slow)))
        has_common = bool(common) and len(slow) > 1
        suspects = tuple(common) if has_common else worst
        fixed = slow if has_common else [worst]
        slowest_ns = {
            kind: max((row.median_ns for row in rows if row.ranks not in fixed), default=0)
            for kind, rows in kinds.items()
        }
        # Of recorded calls, only those count that blocked; of kernels of a profile this is unknown.
        is_recorded, steps = run[Run].is_recorded, len(run[Steps].measured)
        saving = _saving(slow[worst], slowest_ns, steps) if is_recorded else None
        cause = (
            f"All {len(slow)} slow groups have {named(suspects)} in common."
            if has_common
            else "One group does not show which of its links or ranks is slow."
        )
        fix = "Compare adapters and ports"
        action = (
            "Compare adapters, cables, port errors and the placement of these ranks with those of "
            "the other groups (ibstat, nvidia-smi topo -m, ethtool -S), and measure the link with "
            "dsprof bench."
        )
        if run[Run].is_cpu and run[Run].is_one_host:
            fix, action = LINK_OF_CPUS.fix, LINK_OF_CPUS.action.format(ranks=named(suspects))
        return self.meta.finding(
            Status.FAIL,
            f"Collectives among {named(worst)} take {duration(cost_ns)} per step "
            f"({percent(share)}) longer than the same in other groups, after all ranks have "
            "arrived.",
            severity=Severity.HIGH if share >= thresholds.severe_share else Severity.MEDIUM,
            cause=f"{cause} These times exclude waits for late ranks.",
            problem=f"Collectives of {named(worst)} take {duration(cost_ns)} longer per step",
            fix=fix,
            action=action,
            ranks=suspects,
            evidence=(_table(slow),),
            saving_ms_per_step=saving,
            explains_ms=0.0 if saving else cost_ns / 1e6,
            confidence="medium",
        )


def _slow(
    kinds: Mapping[Kind, Sequence[Transfer]], thresholds: Thresholds
) -> dict[_Ranks, list[tuple[Kind, Transfer, float]]]:
    """Return groups far slower than their like, with the excess of each kind in ns."""
    found: defaultdict[_Ranks, list[tuple[Kind, Transfer, float]]] = defaultdict(list)
    for kind, rows in kinds.items():
        medians = np.array([row.median_ns for row in rows], np.int64)
        usual = float(np.median(medians))
        for place in np.flatnonzero(
            low_outliers(-medians, (thresholds.ratio - 1) * usual, most=_WIDE)
        ).tolist():
            row = rows[place]
            found[row.ranks].append((kind, row, (row.median_ns - usual) * row.calls))
    return dict(found)


def _saving(
    found: Sequence[tuple[Kind, Transfer, float]], slowest_ns: Mapping[Kind, int], steps: int
) -> Range | None:
    """Return what a step gets shorter if a group takes as long as the others.

    Then the slowest of them is waited for: the estimate lies between that one and their median.
    """
    high_ns = sum(excess_ns for _, _, excess_ns in found)
    low_ns = sum((row.median_ns - slowest_ns[kind]) * row.calls for kind, row, _ in found)
    return about(min(max(low_ns, 0.0), high_ns) / steps / 1e6, high_ns / steps / 1e6)


def _table(slow: Mapping[_Ranks, Sequence[tuple[Kind, Transfer, float]]]) -> Table:
    rows = [(ranks, *one) for ranks, found in slow.items() for one in found]
    rows.sort(key=lambda row: -row[3])
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
                FAMILIES[kind.op],
                kind.nbytes,
                row.calls,
                row.median_ns,
                round(row.median_ns - excess / max(row.calls, 1)),
            )
            for ranks, kind, row, excess in rows[:_ROWS]
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
    median_ns: int


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
                row = Transfer(one.ranks, one.group.label, calls, int(np.median(mine)))
                found[kind].append(row)
    return dict(found)


RULE: Rule = SlowLink()
