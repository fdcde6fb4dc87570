"""Ranks on hosts, and the process groups over them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.placement import Place, Placement
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.rank.blocked_time import BlockedTime
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.parts.topology import GroupLayout, Topology
from dsprof.rules.hardware.links import LinkModel
from dsprof.trace.schema import ROLES

MOST_RANKS, MOST_LAYOUTS = 64, 12

Groups = dict[str, Place]
"""Groups by key."""


def topology(summary: RunSummary) -> Topology:
    """Lay out ranks and groups; empty where one host has one group, which needs no picture."""
    hosts = {rank: host for rank, host in summary[Run].hosts.items() if host}
    found = summary[Placement]
    ranks = sorted({*summary[Run].ranks, *(n for p in found.groups.values() for n in p.ranks)})
    layouts = _layouts(found.groups)
    if len({*hosts.values()}) < 2 and all(
        set(place.ranks) == {*ranks} for place in found.groups.values()
    ):
        return Topology()
    links, shown = LinkModel.of(summary[EnvironmentFacts]), ranks[:MOST_RANKS]
    return Topology(
        ranks=shown,
        hosts=[hosts.get(rank, "") for rank in shown],
        layouts=[
            _layout(name, groups, shown, hosts, _held(found, groups, summary))
            for name, groups in layouts[:MOST_LAYOUTS]
        ],
        left_out_ranks=len(ranks) - len(shown),
        within_hosts=links.within.name if links.within else "",
        between_hosts=links.between.name if links.between else "",
    )


def _layouts(groups: Mapping[str, Place]) -> list[tuple[str, Groups]]:
    """Put groups of the same name together that share no rank, the largest groups first."""
    found: defaultdict[str, list[tuple[Groups, set[int]]]] = defaultdict(list)
    for key, place in sorted(groups.items(), key=lambda item: (item[1].ranks, item[0])):
        layouts = found[ROLES.get(place.role, place.label)]
        free = (one for one in layouts if one[1].isdisjoint(place.ranks))
        if (mine := next(free, None)) is None:
            layouts.append(mine := ({}, set()))
        mine[0][key] = place
        mine[1].update(place.ranks)
    named = [(name, one) for name, layouts in found.items() for one, _ in layouts]
    return sorted(named, key=lambda item: (-_largest(item[1]), item[0]))


def _largest(groups: Groups) -> int:
    return max(len(place.ranks) for place in groups.values())


def _layout(
    name: str, groups: Groups, ranks: list[int], hosts: Mapping[int, str], sums: BlockedTime
) -> GroupLayout:
    number = {n: i for i, place in enumerate(groups.values()) for n in place.ranks}
    exposed_ms = sums.exposed_ms_per_step
    return GroupLayout(
        name=name,
        size=_largest(groups),
        groups=len(groups),
        hosts=max(len(place.hosts(hosts)) for place in groups.values())
        if number.keys() <= hosts.keys()
        else None,
        group_of=[number.get(rank, -1) for rank in ranks],
        bytes_per_step=sums.bytes_per_step if sums.rank_steps and not sums.unsized else None,
        exposed_ns=None if exposed_ms is None else exposed_ms * 1e6,
    )


def _held(found: Placement, groups: Groups, summary: RunSummary) -> BlockedTime:
    """Add up what the groups did; all their ranks that are present share it."""
    present = {n for place in groups.values() for n in place.ranks} & summary[Run].ranks.keys()
    mine = [sums for use, sums in found.rows.items() if use.group in groups]
    whole = sum(mine, BlockedTime(0, 0, 0, 0, 0.0))
    return replace(whole, rank_steps=len(present) * len(summary[Steps].measured))


SECTIONS = {"topology": topology}
