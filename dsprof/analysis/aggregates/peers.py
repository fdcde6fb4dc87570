"""Traffic from each rank to each other one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsprof.analysis.rank.blocked_time import BlockedTime, blocked_rows
from dsprof.analysis.rank.steps import detailed_steps, in_steps
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.rank_trace import RankTrace

MOST_PEERS = 64
"""A rank keeps this many peers in each direction, those with most bytes: it may meet thousands."""

Pair = tuple[int, int]
"""Sender and receiver."""


@dataclass(frozen=True, slots=True)
class Peers(Aggregate):
    """Sums by pair in measured steps in full detail, once as each side recorded them."""

    sent: dict[Pair, BlockedTime]
    received: dict[Pair, BlockedTime]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Peers:
        rank = trace.rank
        sent = {(rank, peer): sums for peer, sums in _by_peer(trace, "send")}
        return cls(sent, {(peer, rank): sums for peer, sums in _by_peer(trace, "recv")})

    @property
    def once(self) -> dict[Pair, BlockedTime]:
        """Each pair once: as the sender recorded it, where its trace is there."""
        return self.received | self.sent


def _by_peer(trace: RankTrace, direction: str) -> list[tuple[int, BlockedTime]]:
    table, steps = trace.collectives, detailed_steps(trace)
    mine = table.of_families({direction}) & in_steps(table.step, steps) & table.on_wire
    chosen = np.flatnonzero(mine & (table.peer >= 0))
    found = blocked_rows(trace, chosen, [table.peer], len(steps), lambda row: int(table.peer[row]))
    return sorted(found.items(), key=lambda one: -one[1].nbytes)[:MOST_PEERS]
