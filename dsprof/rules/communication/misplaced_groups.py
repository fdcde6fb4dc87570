"""misplaced-groups: ranks that talk most are on different nodes, and need not be."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from dsprof.analysis.aggregates.placement import Place, Placement
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import FILL_HOSTS, plural, size
from dsprof.rules.rule import NoThresholds, Rule, RuleMeta
from dsprof.trace.schema import ROLES

_INNER = ("tensor", "sequence", "context", "hpz", "shard", "expert", "model")
"""Roles whose groups belong inside a node, those that talk most first."""

_SEVERE = ("tensor", "sequence", "context")

_FASTER = 4
"""Links inside a node are at least so many times as fast as those between nodes."""


class _Spread(NamedTuple):
    """Groups of the same role and size that span more nodes than they need."""

    role: str
    size: int
    groups: int
    nodes: int  # of the group that is spread most
    needed: int
    bytes_per_step: float | None
    blocked_ms: float | None
    is_in_order: bool  # each takes ranks that follow each other


_FAR_APART = (
    "Ranks fill one host after another, but the group has ranks that are far apart.",
    "Make this the innermost dimension of the device mesh, so that neighbours in rank form its "
    "groups.",
)


def _not_divided(size: int, most: int) -> tuple[str, str]:
    if most % size == 0:
        return (
            "The groups have consecutive ranks, and hosts have different numbers of ranks: "
            "some groups begin on one host and end on the next.",
            "Give all hosts the same number of ranks.",
        )
    return (
        f"The groups have consecutive ranks, but {size} does not divide the {most} of a host: "
        "some groups begin on one host and end on the next.",
        "Choose a group size that divides the number of ranks of a host.",
    )


class MisplacedGroups(Rule):
    """Compares the nodes that a group spans with the fewest that have room for it."""

    meta = RuleMeta(
        id="misplaced-groups",
        title="Groups with much traffic stay inside a node",
        failing_title="Groups with much traffic span nodes",
        why="Links inside a node are many times faster than those between nodes. Tensor-parallel "
        "ranks exchange activations in each layer, and no computation hides that.",
        category="communication",
        order=360,
        needs=(Placement, Run),
    )

    def check(self, run: RunSummary, thresholds: NoThresholds) -> Iterable[Finding]:
        """Judge the groups of each role and size together."""
        host_of = run[Run].hosts
        sizes = sorted(Counter(host_of.values()).values(), reverse=True)
        inner = {key: p for key, p in run[Placement].groups.items() if p.role in _INNER}
        if len(set(host_of.values())) < 2 and not run[Run].missing_ranks:
            yield self.meta.not_applicable("The run was on one host.")
        elif sizes[0] < 2:
            yield self.meta.not_applicable("Each host had one rank.")
        elif not inner:
            yield self.meta.not_applicable("No group was recorded that belongs inside a node.")
        elif spread := _spread(run[Placement], inner, host_of, sizes):
            yield self._misplaced(spread, host_of, sizes)
        elif any(rank not in host_of for place in inner.values() for rank in place.ranks):
            yield self.meta.unknown(
                "Unknown: the traces of some ranks, which name their hosts, are missing."
            )

    def _misplaced(
        self, spread: list[_Spread], host_of: dict[int, str], sizes: list[int]
    ) -> Finding:
        worst = spread[0]
        in_turn = _is_dealt_in_turn(host_of)
        cause, action = _FAR_APART if not worst.is_in_order else _not_divided(worst.size, sizes[0])
        span, fit = ("spans", "fits") if worst.groups == 1 else ("span", "fit")
        return self.meta.finding(
            Status.FAIL,
            f"{plural(worst.groups, 'group')} of {worst.size} for {_name(worst.role)} {span} "
            f"{worst.nodes} nodes, but {fit} into {worst.needed}"
            f"{_carried(worst.bytes_per_step)}.",
            severity=Severity.HIGH if worst.role in _SEVERE else Severity.MEDIUM,
            cause="Ranks are assigned to hosts round-robin: consecutive ranks are on different "
            "hosts."
            if in_turn
            else cause,
            action=FILL_HOSTS if in_turn else action,
            evidence=(_table(spread),),
            explains_ms=_explained_ms(spread, len(host_of)),
            confidence="medium",
        )


def _explained_ms(spread: list[_Spread], ranks: int) -> float:
    """Return what faster links would spare the mean rank, as far as it is measured."""
    blocked_ms = sum((one.blocked_ms or 0.0) * one.size * one.groups for one in spread)
    return blocked_ms / ranks * (1 - 1 / _FASTER)


def _carried(nbytes: float | None) -> str:
    return "" if nbytes is None else f": {size(nbytes)} per step and rank"


def _spread(
    placement: Placement, inner: dict[str, Place], host_of: dict[int, str], sizes: list[int]
) -> list[_Spread]:
    """Return what is spread over more nodes than it needs, the roles that talk most first."""
    found: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for key, place in inner.items():
        nodes = len(place.hosts(host_of))
        if nodes > _needed(len(place.ranks), sizes):
            found.setdefault((place.role, len(place.ranks)), []).append((key, nodes))
    order = sorted(found.items(), key=lambda item: (_INNER.index(item[0][0]), -item[0][1]))
    return [
        _of_one(placement, role, size, _needed(size, sizes), groups)
        for (role, size), groups in order
    ]


def _needed(size: int, sizes: list[int]) -> int:
    """Return how many hosts have room for `size` ranks together, the largest hosts first."""
    room = list(accumulate(sizes))
    return bisect_left(room, min(size, room[-1])) + 1


def _of_one(
    placement: Placement, role: str, size: int, needed: int, groups: list[tuple[str, int]]
) -> _Spread:
    steps_of = dict.fromkeys((key for key, _ in groups), 0)
    rows = [row for use, row in placement.rows.items() if use.group in steps_of]
    for use, row in placement.rows.items():
        if use.group in steps_of:
            steps_of[use.group] = max(steps_of[use.group], row.rank_steps)
    steps = sum(steps_of.values())
    known = [row.exposed_ns for row in rows if row.exposed_ns is not None]
    blocked_ms = sum(known) / steps / 1e6 if steps and len(known) == len(rows) else None
    is_sized = steps > 0 and not any(row.unsized for row in rows)
    nbytes = sum(row.nbytes for row in rows) / steps if is_sized else None
    nodes = max(nodes for _, nodes in groups)
    members = (placement.groups[key].ranks for key, _ in groups)
    in_order = all(max(ranks) - min(ranks) == len(ranks) - 1 for ranks in members)
    return _Spread(role, size, len(groups), nodes, needed, nbytes, blocked_ms, in_order)


def _is_dealt_in_turn(host_of: dict[int, str]) -> bool:
    """Say whether ranks that follow each other are mostly on different hosts."""
    pairs = [(rank, rank + 1) for rank in host_of if rank + 1 in host_of]
    apart = sum(host_of[one] != host_of[other] for one, other in pairs)
    return 2 * apart > len(pairs)


def _name(role: str) -> str:
    return ROLES.get(role, role)


def _table(spread: list[_Spread]) -> Table:
    return Table(
        columns=(
            Column("groups for"),
            Column("ranks in each", "count"),
            Column("groups", "count"),
            Column("nodes spanned", "count"),
            Column("nodes needed", "count"),
            Column("bytes per step and rank", "bytes"),
            Column("blocked per step", "ms"),
        ),
        rows=tuple(
            (
                _name(one.role),
                one.size,
                one.groups,
                one.nodes,
                one.needed,
                None if one.bytes_per_step is None else round(one.bytes_per_step),
                one.blocked_ms,
            )
            for one in spread
        ),
    )
