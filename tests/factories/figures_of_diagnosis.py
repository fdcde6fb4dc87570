"""What a hand-made diagnosis says of lines, pairs, groups and buckets: all that figures show."""

from __future__ import annotations

from dsprof.diagnosis.parts.communication import BucketFill, CallSiteRow, FillMoment
from dsprof.diagnosis.parts.topology import GroupLayout, PeerTraffic, Topology
from tests.factories.steps_of_diagnosis import MIB, MS


def call_sites() -> list[CallSiteRow]:
    """Two lines that wait, one of which issues two operations."""
    return [
        CallSiteRow(site=site, phase=phase, op=op, calls_per_step=calls, exposed_ns=ms * MS)
        for site, phase, op, calls, ms in (
            ("/home/me/train.py:160 main", "backward", "all_reduce", 12, 61.0),
            ("/home/me/train.py:161 main", "step", "all_gather", 1, 21.5),
            ("/home/me/train.py:161 main", "step", "all_reduce", 2, 1.9),
        )
    ]


def topology(ranks: int) -> Topology:
    """Two hosts; data parallel groups of every second rank."""
    layouts = [
        GroupLayout(
            name=name,
            size=ranks // groups,
            groups=groups,
            hosts=2,
            group_of=[rank % groups for rank in range(ranks)],
            bytes_per_step=57.5 * MIB,
            exposed_ns=61.0 * MS,
        )
        for name, groups in (("world", 1), ("data parallel", 2))
    ]
    hosts = [f"node-{'ab'[2 * rank // ranks]}" for rank in range(ranks)]
    return Topology(ranks=[*range(ranks)], hosts=hosts, layouts=layouts)


def peer_traffic(ranks: int) -> PeerTraffic:
    """Each rank sends to the next."""

    def cells(value: int) -> list[list[int]]:
        return [
            [value * (to == (rank + 1) % ranks) for to in range(ranks)] for rank in range(ranks)
        ]

    return PeerTraffic(
        names=[f"rank {rank}" for rank in range(ranks)],
        bytes=[[*row] for row in cells(4 * MIB)],
        calls=[[float(value) for value in row] for row in cells(8)],
        waited_ns=[[*row] for row in cells(3 * MS)],
    )


def bucket_fill() -> BucketFill:
    """Five full buckets and the rest at the end of backward, in each of two micro-steps."""
    flushes = [
        FillMoment(
            since_ns=(200 * micro + 60 + 18 * number) * MS,
            start_ns=(200 * micro + 72 + 18 * number) * MS,
            end_ns=(200 * micro + 78 + 18 * number) * MS,
            elements=4_980_736 if number < 5 else 811_264,
            capacity=5_000_000,
            bytes=9_961_472 if number < 5 else 1_622_528,
            cause="full" if number < 5 else "end of backward",
        )
        for micro in range(2)
        for number in range(6)
    ]
    return BucketFill(rank=0, step=3, duration_ns=430 * MS, flushes=flushes)
