"""Communication, its speed, late arrivals, and what ZeRO, DDP and FSDP did with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from dsprof.analysis.collectives import SIZE_NOT_KNOWN
from dsprof.diagnosis.parts.communication import (
    ArrivalInfo,
    ArrivalRow,
    CommunicationRow,
    CopyRow,
    FetchRow,
    FillMoment,
    FlushRow,
    TransferRow,
)
from dsprof.diagnosis.parts.steps import AnnotationRow
from dsprof.diagnosis.parts.topology import GroupLayout, PeerTraffic
from dsprof.findings import formatting as fmt
from dsprof.findings.finding import Table
from dsprof.reports.tables.listing import Section, Shown, listing, told
from dsprof.trace.schema import ROLES


def group_name(row: CommunicationRow) -> str:
    """Purpose and name of the group, as far as each is known; empty if neither is."""
    role = ROLES.get(row.role, "")
    if row.group == "unknown":
        return role
    if not role or row.group in (role, "world", "all ranks"):
        return role or row.group
    return f"{role}, {row.group}"


def per_step(
    row: AnnotationRow | CommunicationRow | CopyRow | FetchRow, total: int | None
) -> float | None:
    """Turn a sum over ranks and steps into the mean of one rank's step."""
    if total is None or not row.calls:
        return None
    return total * row.calls_per_step / row.calls


def operation(row: CommunicationRow) -> str:
    """Name the collective, and what was requested if it is something else."""
    return row.op if row.requested in ("", row.op) else f"{row.op} (requested: {row.requested})"


def _members(row: CommunicationRow) -> str:
    """Ranks of small groups, `0, 2; 1, 3`; else how many."""
    if row.group in ("world", "all ranks") or not row.group_ranks:
        return str(row.group_size)
    return "ranks " + "; ".join(fmt.ranks(ranks) for ranks in row.group_ranks)


def _group(row: CommunicationRow) -> str:
    if row.group_size:
        return f"{group_name(row)} ({_members(row)})"
    name = group_name(row)
    return f"{name} (ranks {fmt.UNKNOWN})" if name else fmt.UNKNOWN


def total_bytes(row: CommunicationRow) -> float | None:
    """Bytes of one rank's step; None where the size of no call was recorded."""
    return None if row.size_class == SIZE_NOT_KNOWN else row.bytes_per_step


def _size(row: CommunicationRow) -> str:
    return fmt.UNKNOWN if row.size_class == SIZE_NOT_KNOWN else row.size_class


def _mode(row: CommunicationRow) -> str:
    return ("async" if row.is_async else "sync") + ("" if row.on_wire else ", outside c10d")


_COLLECTIVE: tuple[Shown[CommunicationRow], ...] = (
    Shown("Operation", operation),
    Shown("Group (ranks)", _group),
    Shown("Phase", lambda row: row.phase),
    Shown("Size", _size),
    Shown("Type", lambda row: row.dtype),
    Shown("Mode", _mode),
    Shown("Calls", lambda row: row.calls_per_step, "count"),
    Shown("Bytes", total_bytes, "bytes"),
    Shown("In flight", lambda row: per_step(row, row.in_flight_ns), "ns"),
    Shown("Exposed", lambda row: per_step(row, row.exposed_ns), "ns"),
    Shown("algbw", lambda row: row.algbw, "rate"),
    Shown("busbw", lambda row: row.busbw, "rate"),
    Shown("Called from", lambda row: row.site),
)


def communication(rows: Iterable[CommunicationRow], steps: int = 1) -> Table:
    """Collectives by operation, group and size; the most exposed first. Times are of one rank.

    Without measured steps they are of all that is recorded.
    """
    by_exposure = sorted(rows, key=lambda row: -(row.exposed_ns or 0))
    of = "one step" if steps else "the record"
    return listing(f"Collectives of {of} of one rank, on average", _COLLECTIVE, by_exposure)


def _flushed(row: FlushRow) -> str:
    """Whose gradients: `ZeRO-2`, `DDP bucket 0`, `FSDP2 layers.0`."""
    if not row.library:
        return f"ZeRO-{row.stage}"
    return f"{row.library} {row.module if row.bucket is None else f'bucket {row.bucket}'}"


_FLUSH: tuple[Shown[FlushRow], ...] = (
    Shown("Of", _flushed),
    Shown("Cause", lambda row: row.cause),
    Shown("Flushes per step", lambda row: row.flushes_per_step, "count"),
    Shown("Elements", lambda row: row.elements, "count"),
    Shown("Capacity", lambda row: row.capacity or None, "count"),
    Shown("Fill", lambda row: row.fill, "share"),
    Shown("Bytes", lambda row: row.bytes, "bytes"),
    Shown("Type", lambda row: row.dtype),
    Shown("Parameters", lambda row: row.parameters, "count"),
    Shown("Slot", lambda row: None if row.slot is None else str(row.slot)),
    Shown("Issued", lambda row: ", ".join(row.wire_ops)),
    Shown(
        "Collectives", lambda row: row.wire_calls / row.flushes if row.flushes else None, "count"
    ),
    Shown("Duration", lambda row: row.duration_ns, "ns"),
    Shown("Exposed", lambda row: row.exposed_ns, "ns"),
)


def flushes(rows: Sequence[FlushRow]) -> Table:
    """Bucket flushes that are alike; FSDP's modules have no capacity."""
    caption = "Flushes per rank and step; the other columns are per flush"
    return listing(caption, told(_FLUSH, rows), rows)


_FETCH: tuple[Shown[FetchRow], ...] = (
    Shown("Of", lambda row: f"{row.library} {row.module}" if row.library else "ZeRO-3"),
    Shown("Kind", lambda row: row.kind),
    Shown("Phase", lambda row: row.phase),
    Shown("Calls", lambda row: row.calls_per_step, "count"),
    Shown("Elements", lambda row: per_step(row, row.elements), "count"),
    Shown("Waited", lambda row: per_step(row, row.wait_ns), "ns"),
)
fetches = partial(listing, "Parameters per rank and step, on average", _FETCH)
"""Parameter fetches, prefetches and releases."""


_COPY: tuple[Shown[CopyRow], ...] = (
    Shown("What", lambda row: row.what),
    Shown("Direction", lambda row: row.direction),
    Shown("Phase", lambda row: row.phase),
    Shown("Calls", lambda row: row.calls_per_step, "count"),
    Shown("Bytes", lambda row: row.bytes_per_step, "bytes"),
    Shown("Time", lambda row: per_step(row, row.duration_ns), "ns"),
)
copies = partial(listing, "Copies per rank and step, on average", _COPY)
"""Copies between host and device."""


def last_arrivals(arrivals: ArrivalInfo, steps: int = 1) -> Table:
    """Last arrivals, how often and by how much.

    Without measured steps they are of all that is recorded.
    """
    within, per_step = ("measured steps", ", per step") if steps else ("the record", "")
    columns: tuple[Shown[ArrivalRow], ...] = (
        Shown("rank", lambda row: str(row.rank)),
        Shown("last to arrive", lambda row: row.last, "count"),
        Shown("of collectives", lambda row: row.collectives, "count"),
        Shown(f"others waited for it{per_step}", lambda row: row.caused_ns, "ns"),
        Shown(f"it waited for others{per_step}", lambda row: row.waited_ns, "ns"),
        Shown(f"transfer{per_step}", lambda row: row.transfer_ns, "ns"),
    )
    return listing(f"Last arrivals in {within}", columns, arrivals.rows)


_FILL: tuple[Shown[FillMoment], ...] = (
    Shown("Starts", lambda one: one.start_ns, "ns"),
    Shown("Takes", lambda one: one.end_ns - one.start_ns, "ns"),
    Shown("Fill", lambda one: one.elements / one.capacity if one.capacity else None, "share"),
    Shown("Elements", lambda one: one.elements, "count"),
    Shown("Capacity", lambda one: one.capacity or None, "count"),
    Shown("Bytes", lambda one: one.bytes, "bytes"),
    Shown("Cause", lambda one: one.cause),
)
bucket_fill = partial(listing, "Buckets in order of time", _FILL)
"""Reductions of buckets in one step."""


class _Pair(NamedTuple):
    """Traffic from one rank or host to another in a step."""

    sender: str
    receiver: str
    nbytes: int | None
    calls: float
    waited_ns: int | None


_PAIR: tuple[Shown[_Pair], ...] = (
    Shown("From", lambda pair: pair.sender),
    Shown("To", lambda pair: pair.receiver),
    Shown("Bytes", lambda pair: pair.nbytes, "bytes"),
    Shown("Calls", lambda pair: pair.calls, "count"),
    Shown("Receiver waits", lambda pair: pair.waited_ns, "ns"),
)


def peer_traffic(found: PeerTraffic) -> Table:
    """Pairs that exchange anything, those that exchange most first."""
    places = range(len(found.names))
    pairs = [
        _Pair(
            found.names[row],
            found.names[column],
            found.bytes[row][column],
            found.calls[row][column],
            found.waited_ns[row][column],
        )
        for row, column in product(places, places)
        if found.calls[row][column]
    ]
    pairs.sort(key=lambda pair: -(pair.nbytes or 0))
    return listing("Point-to-point traffic of a step", _PAIR, pairs)


_LAYOUT: tuple[Shown[GroupLayout], ...] = (
    Shown("Groups", lambda one: one.name),
    Shown("Number", lambda one: one.groups, "count"),
    Shown("Ranks of each", lambda one: one.size, "count"),
    Shown("Hosts of each", lambda one: one.hosts, "count"),
    Shown("Bytes", lambda one: one.bytes_per_step, "bytes"),
    Shown("Exposed", lambda one: one.exposed_ns, "ns"),
)
groups = partial(listing, "Process groups; figures per rank and step", _LAYOUT)
"""Kinds of process groups."""


_TRANSFER: tuple[Shown[TransferRow], ...] = (
    Shown("Operation", lambda row: row.op),
    Shown("Group (ranks)", lambda row: f"{row.group} ({row.group_size})"),
    Shown("Hosts", lambda row: row.hosts, "count"),
    Shown("Size", lambda row: row.size_class),
    Shown("Calls", lambda row: row.calls, "count"),
    Shown("Transfer", lambda row: row.time_ns, "ns"),
    Shown("algbw", lambda row: row.algbw, "rate"),
    Shown("busbw", lambda row: row.busbw, "rate"),
    Shown("busbw, fastest quarter", lambda row: row.quick_busbw, "rate"),
    Shown("Expected busbw", lambda row: row.expected_busbw, "rate"),
    Shown("By", lambda row: row.expected_from),
    Shown("Judged", lambda row: "yes" if row.is_judged else "no"),
)
transfers = partial(listing, "Transfer of collectives, call of median speed", _TRANSFER)
"""Transfers by operation, group and size."""


SECTIONS: tuple[Section[Any], ...] = (
    Section(
        "flushes",
        "Bucket flushes",
        "When and why the gradients of each bucket or module were sent, and how full the bucket "
        "was.",
        lambda diagnosis: diagnosis.flushes,
        flushes,
        bars=("Fill", "Exposed"),
        order=1,
    ),
    Section(
        "fetches",
        "Sharded parameters",
        "How often parameters were gathered and released, and their blocked time.",
        lambda diagnosis: diagnosis.fetches,
        fetches,
        bars=("Waited",),
        order=2,
    ),
    Section(
        "copies",
        "Copies between host and device",
        "Bytes that offloading copied, and the time of the copy calls.",
        lambda diagnosis: diagnosis.copies,
        copies,
        nav="Host copies",
        order=3,
    ),
)
