"""Tables of a diagnosis as typed data, for any renderer."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dsprof.diagnosis.model import (
    CommunicationRow,
    CopyRow,
    DeviceRow,
    Diagnosis,
    Difference,
    EnvironmentInfo,
    FetchRow,
    FlightRow,
    FlushRow,
    LoggedCallRow,
    LoggedFact,
    RankMemory,
    SnapshotRow,
    ThresholdInfo,
    Timeline,
)
from dsprof.events import ROLES
from dsprof.reports import formatting as fmt
from dsprof.reports.content import PARTS, StepBar
from dsprof.rules.rule import Cell, Column, Table

MAX_ROWS = 200
"""Rows of one table; a page with more is no longer read, and no longer light."""

Row = tuple[Cell, ...]


def _table(caption: str, columns: Sequence[Column], rows: Iterable[Row]) -> Table:
    kept = tuple(rows)
    if len(kept) > MAX_ROWS:
        caption += f" ({fmt.count(len(kept) - MAX_ROWS)} more rows left out)"
    return Table(tuple(columns), kept[:MAX_ROWS], caption)


def communication(rows: Iterable[CommunicationRow], steps: int = 1) -> Table:
    """Collectives by operation, group and size; the most exposed first. Times are of one rank.

    Without measured steps the record is taken whole.
    """
    columns = (
        Column("Operation"),
        Column("Group (ranks)"),
        Column("Phase"),
        Column("Size"),
        Column("Type"),
        Column("Mode"),
        Column("Calls", "count"),
        Column("Bytes", "bytes"),
        Column("In flight", "ns"),
        Column("Exposed", "ns"),
        Column("algbw", "rate"),
        Column("busbw", "rate"),
        Column("Called from"),
    )
    by_exposure = sorted(rows, key=lambda row: -(row.exposed_ns or 0))
    return _table(
        f"Collectives of {'one step' if steps else 'the whole record'} of one rank, on average",
        columns,
        map(_communication_row, by_exposure),
    )


def _communication_row(row: CommunicationRow) -> Row:
    return (
        row.op if row.op == row.requested else f"{row.op} (requested: {row.requested})",
        f"{group_name(row)} ({_members(row)})",
        row.phase,
        row.size_class,
        row.dtype,
        ("async" if row.is_async else "sync") + ("" if row.on_wire else ", outside c10d"),
        row.calls_per_step,
        row.bytes_per_step,
        per_step(row, row.in_flight_ns),
        per_step(row, row.exposed_ns),
        row.algbw,
        row.busbw,
        row.site,
    )


def group_name(row: CommunicationRow) -> str:
    """What the group is for and how it is called, as far as each is known."""
    role = ROLES.get(row.role, "")
    if not role or row.group in (role, "world", "all ranks"):
        return role or row.group
    return f"{role}, {row.group}"


def _members(row: CommunicationRow) -> str:
    """Ranks of small groups, `0, 2; 1, 3`; else how many."""
    if row.group in ("world", "all ranks") or not row.group_ranks:
        return str(row.group_size)
    return "ranks " + "; ".join(fmt.ranks(ranks) for ranks in row.group_ranks)


def per_step(row: CommunicationRow | CopyRow | FetchRow, total: int | None) -> float | None:
    """Turn a sum over ranks and steps into the mean of one rank's step."""
    if total is None or not row.calls:
        return None
    return total * row.calls_per_step / row.calls


def steps(bars: Iterable[StepBar]) -> Table:
    """Steps and their parts: mean over the ranks."""
    columns = (
        Column("Step"),
        Column("Total", "ns"),
        *(Column(label.capitalize(), "ns") for label in PARTS.values()),
        Column("Fastest rank", "ns"),
        Column("Slowest rank", "ns"),
        Column("Slowest is rank", "count"),
    )
    rows = (
        (
            bar.label,
            bar.total_ns,
            *(part.ns for part in bar.parts),
            bar.fastest_ns,
            bar.slowest_ns,
            bar.slowest_rank,
        )
        for bar in bars
    )
    return _table("Steps, mean over the ranks", columns, rows)


def devices(rows: Sequence[DeviceRow]) -> Table:
    """Time of the accelerator of each rank, over all that the profiler saw."""
    columns = (
        Column("Rank", "count"),
        Column("Span", "ns"),
        Column("Compute", "ns"),
        Column("Communication", "ns"),
        Column("Exposed", "ns"),
        Column("Copies", "ns"),
        Column("Idle", "ns"),
        Column("Overlap", "share"),
        Column("By nccl/rccl in the name", "ns"),
        Column("Exposed of these", "ns"),
        Column("Kernels", "count"),
        Column("For communication", "count"),
    )
    cells = (
        (
            row.rank,
            row.span_ns,
            row.compute_ns,
            row.communication_ns,
            row.exposed_comm_ns,
            row.copies_ns,
            row.idle_ns,
            row.overlap,
            row.named_comm_ns,
            row.named_exposed_ns,
            row.kernels,
            row.communication_kernels,
        )
        for row in rows
    )
    return _table("Compute + exposed + copies + idle = span", columns, cells)


def flights(rows: Iterable[FlightRow]) -> Table:
    """Process groups in which something was in flight when flight recorders were dumped."""
    columns = (
        Column("Group"),
        Column("Name"),
        Column("Ranks"),
        Column("In flight", "count"),
        Column("Sends and receives", "count"),
        Column("First that cannot end"),
        Column("Elements", "count"),
        Column("Type"),
        Column("Called by"),
        Column("Not called by"),
        Column("Not finished by"),
        Column("Without a dump"),
    )
    cells = (
        (
            row.group,
            row.name,
            fmt.ranks(row.ranks),
            row.in_flight,
            row.p2p_in_flight,
            "" if row.number is None else f"{row.op} {fmt.count(row.number)}",
            row.elements,
            row.dtype,
            fmt.ranks(row.waiting),
            fmt.ranks(row.absent),
            fmt.ranks(row.unfinished),
            fmt.ranks(row.without_dump),
        )
        for row in rows
    )
    return _table("Those first that began to wait first", columns, cells)


def flushes(rows: Iterable[FlushRow]) -> Table:
    """Bucket flushes that are alike."""
    columns = (
        Column("Of"),
        Column("Cause"),
        Column("Flushes per step", "count"),
        Column("Elements", "count"),
        Column("Capacity", "count"),
        Column("Fill", "share"),
        Column("Bytes", "bytes"),
        Column("Type"),
        Column("Parameters", "count"),
        Column("Slot"),
        Column("Issued"),
        Column("Collectives", "count"),
        Column("Duration", "ns"),
        Column("Exposed", "ns"),
    )
    cells = (
        (
            _flushed(row),
            row.cause,
            row.flushes_per_step,
            row.elements,
            row.capacity,
            row.fill,
            row.bytes,
            row.dtype,
            row.parameters,
            None if row.slot is None else str(row.slot),
            ", ".join(row.wire_ops),
            row.wire_calls / row.flushes if row.flushes else None,
            row.duration_ns,
            row.exposed_ns,
        )
        for row in rows
    )
    return _table(
        "Bucket flushes; their number is of one step of one rank, all else of one flush",
        columns,
        cells,
    )


def _flushed(row: FlushRow) -> str:
    """Whose gradients: `ZeRO-2`, `DDP bucket 0`, `FSDP2 layers.0`."""
    if not row.library:
        return f"ZeRO-{row.stage}"
    return (
        f"{row.library} {row.module}"
        if row.bucket is None
        else f"{row.library} bucket {row.bucket}"
    )


def fetches(rows: Iterable[FetchRow]) -> Table:
    """Parameter fetches, prefetches and releases."""
    columns = (
        Column("Of"),
        Column("Kind"),
        Column("Phase"),
        Column("Calls", "count"),
        Column("Elements", "count"),
        Column("Waited", "ns"),
    )
    cells = (
        (
            f"{row.library} {row.module}" if row.library else "ZeRO-3",
            row.kind,
            row.phase,
            row.calls_per_step,
            per_step(row, row.elements),
            per_step(row, row.wait_ns),
        )
        for row in rows
    )
    return _table("Parameters of one step of one rank, on average", columns, cells)


def copies(rows: Iterable[CopyRow]) -> Table:
    """Copies between host and device."""
    columns = (
        Column("What"),
        Column("Direction"),
        Column("Phase"),
        Column("Calls", "count"),
        Column("Bytes", "bytes"),
        Column("Time", "ns"),
    )
    cells = (
        (
            row.what,
            row.direction,
            row.phase,
            row.calls_per_step,
            row.bytes_per_step,
            per_step(row, row.duration_ns),
        )
        for row in rows
    )
    return _table("Copies of one step of one rank, on average", columns, cells)


def timeline(step: Timeline) -> Table:
    """The numbers behind a timeline: time by rank, lane and kind."""
    lengths: dict[tuple[int, str, str], list[int]] = defaultdict(list)
    for bar in step.bars:
        lengths[bar.rank, bar.lane, bar.kind].append(bar.end_ns - bar.start_ns)
    columns = (
        Column("Rank", "count"),
        Column("Lane"),
        Column("Kind"),
        Column("Bars", "count"),
        Column("Sum", "ns"),
        Column("Longest", "ns"),
    )
    rows = ((*key, len(spans), sum(spans), max(spans)) for key, spans in sorted(lengths.items()))
    return _table(f"Step {step.step} by rank, lane and kind", columns, rows)


def memory(rows: Sequence[RankMemory]) -> Table:
    """Peaks and least free memory of each rank."""
    counters = sorted({name for row in rows for name in row.device})
    columns = (
        Column("Rank", "count"),
        Column("Peak RSS", "bytes"),
        Column("Last RSS", "bytes"),
        Column("Host memory", "bytes"),
        Column("Least available", "bytes"),
        Column("/dev/shm", "bytes"),
        Column("Least free", "bytes"),
        *(Column(name, "bytes" if "byte" in name else "count") for name in counters),
    )
    cells = (
        (
            row.rank,
            row.peak_rss_bytes,
            row.last_rss_bytes,
            row.host_total_bytes,
            row.least_host_available_bytes,
            row.shm_total_bytes,
            row.least_shm_free_bytes,
            *(row.device.get(name) for name in counters),
        )
        for row in rows
    )
    return _table("Memory by rank", columns, cells)


def snapshots(rows: Sequence[SnapshotRow]) -> Iterator[Table]:
    """How the memory of each device was laid out, and who held it at the peak."""
    columns = (
        Column("Rank", "count"),
        Column("Reserved", "bytes"),
        Column("In use", "bytes"),
        Column("Cached, given back when asked", "bytes"),
        Column("Stuck", "bytes"),
        Column("Largest free block", "bytes"),
        Column("In expandable segments", "bytes"),
        Column("In private pools", "bytes"),
        Column("Segments", "count"),
        Column("Partly used", "count"),
        Column("Peak requested", "bytes"),
    )
    cells = (
        (
            row.rank,
            row.reserved_bytes,
            row.active_bytes,
            row.cached_bytes,
            row.stuck_bytes,
            row.largest_free_bytes,
            row.expandable_bytes,
            row.private_bytes,
            row.segments,
            row.partly_used,
            row.peak_bytes,
        )
        for row in rows
    )
    yield _table("Snapshots: in use + cached + stuck = reserved", columns, cells)
    held = [
        (row.rank, caller, nbytes)
        for row in rows
        for caller, nbytes in [
            *row.peak_holders.items(),
            ("allocated before the history began", row.peak_before_bytes or 0),
        ]
        if nbytes
    ]
    if held:
        of_holders = (Column("Rank", "count"), Column("Called from"), Column("Held", "bytes"))
        yield _table("Who held memory at the peak", of_holders, held)


def differences(rows: Iterable[Difference]) -> Table:
    """What is not the same on all ranks, one row a value."""
    cells = (
        (row.name, value or "(unset)", fmt.ranks(ranks))
        for row in rows
        for value, ranks in row.values.items()
    )
    columns = (Column("Name"), Column("Value"), Column("Ranks"))
    return _table("Different between ranks", columns, cells)


def logged(rows: Iterable[LoggedFact]) -> Table:
    """What libraries said of themselves, and on which ranks."""
    cells = ((row.kind, row.value, fmt.ranks(row.ranks), row.lines) for row in rows)
    columns = (Column("Of"), Column("Value"), Column("Ranks"), Column("Lines", "count"))
    return _table("As the logs say", columns, cells)


def logged_calls(rows: Iterable[LoggedCallRow]) -> Table:
    """Calls that another tool timed."""
    columns = (
        Column("By"),
        Column("Operation"),
        Column("Called from"),
        Column("Message", "bytes"),
        Column("Calls", "count"),
        Column("Time", "ns"),
        Column("Mean", "ns"),
        Column("algbw", "rate"),
        Column("busbw", "rate"),
        Column("Waited for the slowest", "ns"),
        Column("Note"),
    )
    cells = (
        (
            row.source,
            row.op,
            row.caller,
            row.message_bytes,
            row.calls,
            row.total_ns,
            row.mean_ns,
            row.algbw,
            row.busbw,
            row.straggler_ns,
            row.note,
        )
        for row in rows
    )
    return _table("Reported by another tool, not measured by dsprof", columns, cells)


def environment(info: EnvironmentInfo) -> Iterator[Table]:
    """What is common to all ranks: versions, devices, variables, files, limits."""
    devices = [("GPU", name) for name in info.gpus]
    devices += [("accelerator", name) for name in info.accelerators]
    devices += [("adapter", name) for name in info.adapters]
    devices += [("network", name) for name in info.network_devices]
    machine = [*info.machine.items(), *(("library", path) for path in info.libraries)]
    limits = {name: fmt.count(value) for name, value in info.limits.items()}
    redacted = [(name, "(not shown: looks like a credential)") for name in info.redacted]
    changed = {k: v for k, v in info.effective.items() if info.variables.get(k) != v}
    yield from _pairs("Versions", info.versions.items())
    yield from _pairs("Devices", devices)
    yield from _pairs("Machine", machine)
    yield from _pairs("Variables", [*info.variables.items(), *redacted])
    yield from _pairs("Changed by the time communication began", changed.items())
    for path, settings in info.files.items():
        yield from _pairs(f"File {path}", settings.items())
    yield from _pairs("Limits", limits.items())


def _pairs(caption: str, items: Iterable[tuple[str, str]]) -> Iterator[Table]:
    rows = tuple(sorted(items))
    if rows:
        yield _table(caption, (Column("Name"), Column("Value")), rows)


def configuration(info: EnvironmentInfo) -> Table:
    """DeepSpeed settings: what the user wrote, and beside it what the engine uses."""
    written, effective = dict(_leaves(info.written_config)), dict(_leaves(info.effective_config))
    rows = [
        (key, written.get(key, "(default)"), effective.get(key, "(not reported)"))
        for key in sorted({*written, *effective})
    ]
    rows.sort(key=lambda row: row[0] not in written)
    columns = (Column("Setting"), Column("Written"), Column("In force"))
    return _table("DeepSpeed configuration", columns, rows)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Flatten nested settings to dotted names and JSON values."""
    if isinstance(value, dict) and (value or not path):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, json.dumps(value, ensure_ascii=False)


def thresholds(rows: Iterable[ThresholdInfo]) -> Table:
    """The limits that the rules judged by."""
    cells = (
        (
            row.rule,
            row.name,
            json.dumps(row.value, ensure_ascii=False),
            "default" if row.is_default else "set by you",
        )
        for row in rows
    )
    columns = (Column("Rule"), Column("Threshold"), Column("Value"), Column("From"))
    return _table("Thresholds in force", columns, cells)


def run(diagnosis: Diagnosis) -> Table:
    """Identity of the run and what was read."""
    info = diagnosis.run
    rows = [
        ("Run", info.run_key),
        ("Started", info.started),
        ("Hosts", ", ".join(info.hosts)),
        ("Ranks read", fmt.ranks(info.ranks)),
        *((f"Version of {name}", version) for name, version in sorted(info.versions.items())),
        ("Judged by dsprof", diagnosis.dsprof_version),
        *(("File read", path) for path in info.source),
    ]
    columns = (Column("Name"), Column("Value"))
    return _table("This run", columns, [row for row in rows if row[1]])
