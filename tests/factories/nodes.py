"""Runs on several nodes of two ranks each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsprof.trace.lines import Line
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Group
from tests.factories.trace import group, header, rank_trace, step, sync

MIB = 1 << 20


def on_nodes(
    hosts: Sequence[str], comm: Sequence[dict[str, Any]], groups: Sequence[Group], **fields: Any
) -> list[RankTrace]:
    """A run of as many ranks as `hosts`, each with three steps of the same collectives.

    `comm` are fields of `sync` with `op`, `took` (ms) and `group`; a rank takes part in those
    groups that it is in.
    """
    world = len(hosts)
    return [
        rank_trace(
            rank,
            world,
            head=header(rank, world, host=host, boot_id=host),
            groups={g.id: g for g in groups if rank in g.ranks},
            steps=[step(n, 100 * n, 100 * n + 100) for n in range(3)],
            comm=list(_steps([one for one in comm if rank in _ranks(groups, one["group"])])),
            **fields,
        )
        for rank, host in enumerate(hosts)
    ]


def of(number: int, ranks: Sequence[int], role: str = "") -> Group:
    """A group of some ranks."""
    return group(id=number, key=f"{role}{list(ranks)}", role=role, label=role, ranks=list(ranks))


def _ranks(groups: Sequence[Group], number: int) -> list[int]:
    return next(one.ranks for one in groups if one.id == number)


def _steps(comm: Sequence[dict[str, Any]]) -> list[Line]:
    made = []
    for number in range(3):
        for index, one in enumerate(comm):
            fields = {"nbytes": MIB, **one}
            at = 100 * number + 10 + 20 * index
            made.append(sync(fields.pop("op"), at, fields.pop("took"), step=number, **fields))
    return made
