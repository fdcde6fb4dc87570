"""Communication, its speed, and late arrivals: collectives, flushes, fetches and copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.bucket_fills import BucketFills
from dsprof.analysis.aggregates.call_sites import CallSites
from dsprof.analysis.aggregates.communication import Communication, Kind, Row
from dsprof.analysis.aggregates.copies import Copies
from dsprof.analysis.aggregates.fetches import Fetches
from dsprof.analysis.aggregates.flushes import Flushes, FlushKind, FlushSums
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.collectives import SIZE_NOT_KNOWN
from dsprof.analysis.rank.intervals import Array
from dsprof.analysis.run.lateness import Causes, Lateness, causes, lateness
from dsprof.analysis.run.transfer_speed import Path
from dsprof.analysis.run.wait_attribution import attribution
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.parts import filled
from dsprof.diagnosis.parts.communication import (
    ArrivalInfo,
    ArrivalRow,
    BucketFill,
    CallSiteRow,
    CommunicationRow,
    CopyRow,
    ExpectedCurve,
    FetchRow,
    FillMoment,
    FlushRow,
    TransferRow,
    WaitPairs,
)
from dsprof.diagnosis.per_step import per_rank_step
from dsprof.findings.wording import percent
from dsprof.rules.hardware.judged_transfers import (
    Expectations,
    Judged,
    Thresholds,
    judged,
)

_FLUSH_ROWS = 200
_CALL_SITES = 200
_LEAST_EXPOSED = 0.05  # of the step: less is not explained
_MINOR = 0.25  # of the other part: so little is not what costs the step its time


def communication(summary: RunSummary) -> list[CommunicationRow]:
    """List collectives, those that cost most first."""
    rows = summary[Communication].rows.items()
    order = sorted(rows, key=lambda item: (-(item[1].exposed_ns or 0), -item[1].nbytes, item[0]))
    return [_communication_row(kind, row) for kind, row in order]


def call_sites(summary: RunSummary) -> list[CallSiteRow]:
    """List the lines that issue collectives, the most exposed first; at most 200."""
    found = summary[CallSites]
    rows = [
        CallSiteRow(
            **use._asdict(),
            calls_per_step=per_rank_step(held.calls, found.rank_steps),
            exposed_ns=None
            if held.exposed_ns is None
            else per_rank_step(held.exposed_ns, found.rank_steps),
        )
        for use, held in found.rows.items()
    ]
    rows.sort(key=lambda row: (-(row.exposed_ns or 0), row.site, row.phase, row.op))
    return rows[:_CALL_SITES]


def flushes(summary: RunSummary) -> list[FlushRow]:
    """List bucket flushes, those that cost most first; at most 200 kinds."""
    order = sorted(summary[Flushes].rows.items(), key=lambda item: (-item[1].exposed_ns, item[0]))
    is_timed = summary[Steps].total.exposed_ns is not None
    return [_flush_row(kind, sums, is_timed=is_timed) for kind, sums in order[:_FLUSH_ROWS]]


def bucket_fill(summary: RunSummary) -> BucketFill | None:
    """Say how full buckets were when they were reduced, over one step of one rank."""
    found = summary[BucketFills].found
    if found is None:
        return None
    begun = found.step.start_ns
    return BucketFill(
        rank=found.rank,
        step=found.step.step,
        duration_ns=found.step.end_ns - begun,
        flushes=[
            filled(
                FillMoment,
                flush,
                since_ns=since_ns - begun,
                start_ns=flush.start_ns - begun,
                end_ns=flush.end_ns - begun,
                bytes=flush.nbytes,
            )
            for since_ns, flush in found.flushes
        ],
        left_out=found.left_out,
    )


def fetches(summary: RunSummary) -> list[FetchRow]:
    """List parameter fetches, those that were waited for longest first."""
    order = sorted(summary[Fetches].rows.items(), key=lambda item: (-item[1].wait_ns, item[0]))
    return [
        filled(FetchRow, kind, sums, calls_per_step=per_rank_step(sums.calls, sums.rank_steps))
        for kind, sums in order
    ]


def copies(summary: RunSummary) -> list[CopyRow]:
    """List copies between host and device, those that take longest first."""
    rows = summary[Copies].rows.items()
    return [
        filled(
            CopyRow,
            sums,
            what=what,
            direction=direction,
            phase=phase,
            calls_per_step=per_rank_step(sums.calls, sums.rank_steps),
            bytes=sums.nbytes,
            bytes_per_step=per_rank_step(sums.nbytes, sums.rank_steps),
        )
        for (what, direction, phase), sums in sorted(
            rows, key=lambda item: (-item[1].duration_ns, item[0])
        )
    ]


def _communication_row(kind: Kind, row: Row) -> CommunicationRow:
    is_sized = kind.size_class != SIZE_NOT_KNOWN
    return filled(
        CommunicationRow,
        kind,
        row,
        group_size=kind.group_size or None,
        bytes=row.nbytes if is_sized else None,
        bytes_per_step=row.bytes_per_step if is_sized else None,
        busbw=row.busbw(kind),
        site=row.sites[0][0] if row.sites else "",
        group_ranks=[list(ranks) for ranks in row.members],
    )


def _flush_row(kind: FlushKind, sums: FlushSums, *, is_timed: bool) -> FlushRow:
    return filled(
        FlushRow,
        kind,
        sums,
        fill=kind.elements / kind.capacity if kind.capacity else None,
        bytes=kind.nbytes,
        slot=kind.slot if kind.slot >= 0 else None,
        flushes_per_step=per_rank_step(sums.flushes, sums.rank_steps),
        wire_ops=sorted(sums.wire_ops),
        wire_calls=sums.wire_ops.total(),
        duration_ns=sums.duration_ns // sums.flushes,
        exposed_ns=sums.exposed_ns // sums.flushes if is_timed else None,
        bucket=kind.bucket if kind.bucket >= 0 else None,
    )


_TRANSFER_ROWS = 100
_RULE = "low-bus-bandwidth"


def transfers(summary: RunSummary, thresholds: Mapping[str, Any]) -> list[TransferRow]:
    """List transfers by group, operation and size, up to 100."""
    given: Thresholds = thresholds.get(_RULE, Thresholds())
    return [_transfer_row(row, given) for row in judged(summary, given)[:_TRANSFER_ROWS]]


def expected_curves(summary: RunSummary, rows: Sequence[TransferRow]) -> list[ExpectedCurve]:
    """Say what is expected over all sizes of the rows, for each operation and group of them."""
    known = [row.bytes for row in rows if row.bytes > 0]
    if not known:
        return []
    powers = (1 << power for power in range(max(known).bit_length()))
    sizes = sorted({min(known), *(size for size in powers if size > min(known)), max(known)})
    expected = Expectations.of(summary)
    curves = []
    for op, group, group_size, hosts in dict.fromkeys(map(_PATH_OF, rows)):
        path = Path(op, group, group_size, hosts, "")
        found = [(size, held) for size in sizes if (held := expected.at(path, size))]
        if found:
            curves.append(
                ExpectedCurve(
                    op=op,
                    group=group,
                    group_size=group_size,
                    hosts=hosts,
                    source=found[0][1].source,
                    bytes=[size for size, _ in found],
                    busbw=[held.busbw for _, held in found],
                )
            )
    return curves


_PATH_OF = attrgetter("op", "group", "group_size", "hosts")


def _transfer_row(row: Judged, thresholds: Thresholds) -> TransferRow:
    transfer, path = row.transfer, row.transfer.path
    return filled(
        TransferRow,
        path,
        transfer,
        hosts=path.nodes,
        bytes=transfer.nbytes,
        expected_busbw=row.expected.busbw if row.expected else None,
        expected_from=row.expected.source if row.expected else "",
        is_judged=row.expected is not None and row.is_fair(thresholds),
    )


_ARRIVAL_RANKS = 64
_ARRIVAL_STEPS = 500
_PAIRED_RANKS = 24


def arrivals(summary: RunSummary) -> ArrivalInfo:
    """List the ranks for whom others waited most, up to 64, and the last rank of up to 500 steps.

    What a rank did not record matches nothing: only steps that all recorded count. Without steps
    the record is taken whole, and counts as one.
    """
    matched, measured = summary[Arrivals].matched, summary[Steps].measured_by_all
    late = lateness(matched, measured or None)
    count = max(len(measured), 1)
    order = np.argsort(-late.caused_ns, kind="stable")
    return ArrivalInfo(
        rows=[_arrival_row(late, i, count) for i in order[:_ARRIVAL_RANKS].tolist()],
        last_ranks=_last_ranks(causes(matched)),
        pairs=_pairs(late, order[:_PAIRED_RANKS], count),
        left_out_ranks=max(len(late.ranks) - _ARRIVAL_RANKS, 0),
        one_in=late.one_in,
        by_ends=any(one.by_ends for one in matched),
        doubt_ns=late.doubt_ns,
        attribution=_attribution(summary),
    )


def _attribution(summary: RunSummary) -> str:
    """Say whether the network costs the exposed time; empty where that is unknown or little."""
    split = attribution(summary)
    if split is None or split.waiting + split.transfer < _LEAST_EXPOSED:
        return ""
    is_network = split.transfer > _MINOR * split.waiting
    is_one = split.latest is not None and split.waiting > _MINOR * split.transfer
    whom = f", mostly for rank {split.latest}" if is_one else " for late ranks"
    transfer = split.transfer / (split.waiting + split.transfer)  # the bar may be of fewer steps
    network, other = (" (the network)", "") if is_network else ("", "Not the network: ")
    return (
        f"{other}{percent(transfer)} of all exposed communication is transfer{network}, "
        f"{percent(1 - transfer)} is waiting{whom}."
    )


def _pairs(late: Lateness, order: Array, steps: int) -> WaitPairs:
    """Say how long the ranks for whom others waited most waited for each other."""
    if late.pairs_ns is None or len(order) < 2:
        return WaitPairs()
    places = np.sort(order)
    chosen = late.pairs_ns[np.ix_(places, places)] // steps
    return WaitPairs([late.ranks[place] for place in places.tolist()], chosen.tolist())


def _arrival_row(late: Lateness, place: int, steps: int) -> ArrivalRow:
    return ArrivalRow(
        rank=late.ranks[place],
        last=int(late.lasts[place]),
        collectives=int(late.met[place]),
        caused_ns=int(late.caused_ns[place]) // steps,
        waited_ns=int(late.waited_in_all_ns[place]) // steps,
        transfer_ns=int(late.transfer_ns[place]) // steps,
    )


def _last_ranks(late: Causes) -> dict[str, int]:
    """Return the rank that made others wait longest, step by step."""
    found = {}
    steps = np.unique(late.step)
    for step in steps[steps >= 0][-_ARRIVAL_STEPS:].tolist():
        caused_ns = late.by_rank([step])
        place = int(np.argmax(caused_ns))
        if caused_ns[place] > 0:
            found[str(step)] = late.ranks[place]
    return found


SECTIONS = {
    "arrivals": arrivals,
    "bucket_fill": bucket_fill,
    "call_sites": call_sites,
    "communication": communication,
    "copies": copies,
    "fetches": fetches,
    "flushes": flushes,
}
