"""Evidence that a rank is late: who came last, and what each rank did without waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple

import numpy as np

from dsprof.analysis.rank.pace import Pace
from dsprof.analysis.run.busy_time import BusyTime
from dsprof.analysis.run.lateness import Lateness, Votes
from dsprof.findings.finding import Column, Table

_ROWS = 16
_OWN_TIME = "Own time of a step, without waits; the latest rank first"
_PHASES = {
    "compute_ns": "in forward, backward and step",
    "copies_ns": "copies",
    "before_ns": "before the first forward",
    "outside_ns": "otherwise outside phases",
}
_KERNELS = {"compute_ns": "computing kernels", "copies_ns": "copies", "idle_ns": "device idle"}


def last_arrivals(late: Lateness, votes: Votes) -> Table:
    """List who came last, how often, and by how much; the costliest rank first."""
    steps = max(votes.steps, 1)
    order = np.argsort(-late.caused_ns.sum(axis=1), kind="stable")[:_ROWS]
    rows = [
        (
            late.ranks[i],
            int(late.lasts[i]),
            int(late.met[i]),
            int(votes.votes[i]),
            int(late.caused_ns[i].sum()) // steps,
            int(late.waited_ns[i].clip(0).sum()) // steps,
            int(late.transfer_ns[i].sum()) // steps,
        )
        for i in order
    ]
    return Table(
        columns=(
            Column("rank"),
            Column("last to arrive", "count"),
            Column("of collectives", "count"),
            Column("steps in which only it was late", "count"),
            Column("others waited for it, a step", "ns"),
            Column("it waited for others, a step", "ns"),
            Column("transfer, a step", "ns"),
        ),
        rows=tuple(rows),
        caption="Last arrivals",
    )


def own_time(times: Mapping[int, BusyTime], votes: Votes) -> Table:
    """List the parts of a step of each rank: phases, or kernels where a profile beside has them."""
    chosen = _latest(votes)
    labels = _PHASES if times[chosen[0]].idle_ns is None else _KERNELS
    rows = ([getattr(times[rank], part) for part in labels] for rank in chosen)
    return Table(
        columns=(Column("rank"), *(Column(label, "ns") for label in labels.values())),
        rows=tuple(
            (rank, *(None if value is None else round(value) for value in row))
            for rank, row in zip(chosen, rows, strict=True)
        ),
        caption=_OWN_TIME,
    )


def pace_table(paces: Mapping[int, Pace | None], votes: Votes) -> Table:
    """List what a step takes each rank around its marks."""
    chosen = [(rank, found) for rank in _latest(votes) if (found := paces[rank]) is not None]
    return Table(
        columns=(
            Column("rank"),
            Column("until its first backward or collective", "ns"),
            Column("from there to its last", "ns"),
            Column("after that", "ns"),
        ),
        rows=tuple((rank, *astuple(found)) for rank, found in chosen),
        caption=_OWN_TIME,
    )


def _latest(votes: Votes) -> list[int]:
    order = np.argsort(-votes.median_ns, kind="stable")[:_ROWS]
    return [votes.ranks[i] for i in order]
