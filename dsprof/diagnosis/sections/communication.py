"""What was sent: collectives, bucket flushes, parameter fetches and copies."""

from __future__ import annotations

from dsprof.analysis.aggregates.communication import Communication, Kind, Row
from dsprof.analysis.aggregates.copies import Copies
from dsprof.analysis.aggregates.fetches import Fetches
from dsprof.analysis.aggregates.flushes import Flushes, FlushKind, FlushSums
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.collectives import SIZE_NOT_KNOWN
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis import model
from dsprof.diagnosis.per_step import per_rank_step

_FLUSH_ROWS = 200


def communication(summary: RunSummary) -> list[model.CommunicationRow]:
    """List collectives, those that cost most first."""
    rows = summary[Communication].rows.items()
    order = sorted(rows, key=lambda item: (-(item[1].exposed_ns or 0), -item[1].nbytes, item[0]))
    return [_communication_row(kind, row) for kind, row in order]


def flushes(summary: RunSummary) -> list[model.FlushRow]:
    """List bucket flushes, those that cost most first; at most 200 kinds."""
    order = sorted(summary[Flushes].rows.items(), key=lambda item: (-item[1].exposed_ns, item[0]))
    is_timed = summary[Steps].total.exposed_ns is not None
    return [_flush_row(kind, sums, is_timed=is_timed) for kind, sums in order[:_FLUSH_ROWS]]


def fetches(summary: RunSummary) -> list[model.FetchRow]:
    """List parameter fetches."""
    return [
        model.FetchRow(
            **kind._asdict(),
            calls=sums.calls,
            calls_per_step=per_rank_step(sums.calls, sums.rank_steps),
            elements=sums.elements,
            wait_ns=sums.wait_ns,
        )
        for kind, sums in sorted(summary[Fetches].rows.items())
    ]


def copies(summary: RunSummary) -> list[model.CopyRow]:
    """List copies between host and device, those that take longest first."""
    rows = summary[Copies].rows.items()
    return [
        model.CopyRow(
            what=what,
            direction=direction,
            phase=phase,
            calls=sums.calls,
            calls_per_step=per_rank_step(sums.calls, sums.rank_steps),
            bytes=sums.nbytes,
            bytes_per_step=per_rank_step(sums.nbytes, sums.rank_steps),
            duration_ns=sums.duration_ns,
        )
        for (what, direction, phase), sums in sorted(
            rows, key=lambda item: (-item[1].duration_ns, item[0])
        )
    ]


def _communication_row(kind: Kind, row: Row) -> model.CommunicationRow:
    is_sized = kind.size_class != SIZE_NOT_KNOWN
    return model.CommunicationRow(
        **kind._asdict() | {"group_size": kind.group_size or None},
        calls=row.calls,
        bytes=row.nbytes if is_sized else None,
        calls_per_step=per_rank_step(row.calls, row.rank_steps),
        bytes_per_step=per_rank_step(row.nbytes, row.rank_steps) if is_sized else None,
        in_flight_ns=row.in_flight_ns,
        exposed_ns=row.exposed_ns,
        algbw=row.algbw,
        busbw=row.busbw(kind),
        site=row.sites[0][0] if row.sites else "",
        group_ranks=[list(ranks) for ranks in row.members],
    )


def _flush_row(kind: FlushKind, sums: FlushSums, *, is_timed: bool) -> model.FlushRow:
    return model.FlushRow(
        stage=kind.stage,
        cause=kind.cause,
        dtype=kind.dtype,
        elements=kind.elements,
        capacity=kind.capacity,
        fill=kind.elements / kind.capacity if kind.capacity else None,
        bytes=kind.nbytes,
        parameters=kind.parameters,
        slot=kind.slot if kind.slot >= 0 else None,
        flushes=sums.flushes,
        flushes_per_step=per_rank_step(sums.flushes, sums.rank_steps),
        wire_ops=sorted(sums.wire_ops),
        wire_calls=sums.wire_ops.total(),
        duration_ns=sums.duration_ns // sums.flushes,
        exposed_ns=sums.exposed_ns // sums.flushes if is_timed else None,
        library=kind.library,
        module=kind.module,
        bucket=kind.bucket if kind.bucket >= 0 else None,
    )
