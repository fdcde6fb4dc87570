"""Traffic between ranks; hosts, or the busiest ranks, where there are many."""

from __future__ import annotations

from collections import Counter

from dsprof.analysis.aggregates.peers import Peers
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.parts.topology import PeerTraffic

MOST = 32
"""Rows of the matrix: more cannot be read."""
_OTHERS = "others"


def peer_traffic(summary: RunSummary) -> PeerTraffic:
    """Lay out what was sent in a step; empty where nothing was."""
    peers = summary[Peers]
    names = _names(peers, summary[Run].hosts)
    labels = list(dict.fromkeys(names.values()))
    place = {name: number for number, name in enumerate(labels)}
    found = PeerTraffic(
        names=labels,
        bytes=[[0] * len(labels) for _ in labels],
        calls=[[0.0] * len(labels) for _ in labels],
        waited_ns=[[0] * len(labels) for _ in labels],
    )
    for pair, sums in peers.once.items():
        row, column = (place[names[rank]] for rank in pair)
        found.calls[row][column] += sums.calls_per_step
        _add(found.bytes, row, column, None if sums.unsized else round(sums.bytes_per_step))
        received = peers.received.get(pair)
        waited_ms = received.exposed_ms_per_step if received else None
        _add(found.waited_ns, row, column, None if waited_ms is None else round(waited_ms * 1e6))
    return found


def _names(peers: Peers, hosts: dict[int, str]) -> dict[int, str]:
    """Name each rank that takes part: after itself, its host, or as one of the others."""
    busy: Counter[int] = Counter()
    for pair, sums in peers.once.items():
        for rank in pair:
            busy[rank] += sums.nbytes
    ranks = sorted(busy)
    if len(ranks) > MOST and 1 < len({*hosts.values()}) <= MOST and hosts.keys() >= busy.keys():
        return {rank: hosts[rank] for rank in ranks}
    shown = {rank for rank, _ in busy.most_common(MOST)}
    named = {rank: f"rank {rank}" for rank in ranks if rank in shown}
    return named | {rank: _OTHERS for rank in ranks if rank not in shown}


def _add(cells: list[list[int | None]], row: int, column: int, value: int | None) -> None:
    """Add to a cell, which is unknown as soon as a part of it is."""
    before = cells[row][column]
    cells[row][column] = None if before is None or value is None else before + value


SECTIONS = {"peer_traffic": peer_traffic}
