"""Reads what `nsys export --type sqlite` writes: one or more processes, each with its devices.

Tables and columns come and go with the version of Nsight Systems; what a file lacks stays unknown.
Times in a file are nanoseconds since the start of the recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dsprof.errors import TraceError
from dsprof.trace.device_activity import HostWork
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers.base import Facts, Reader, foreign_header
from dsprof.trace.readers.call_rows import CallRows, GroupTable
from dsprof.trace.readers.nsys.columns import activity, calls
from dsprof.trace.readers.nsys.device_work import Work
from dsprof.trace.readers.nsys.host_work import host_work
from dsprof.trace.readers.nsys.nccl import Issue, Kernel, issues
from dsprof.trace.readers.nsys.processes import Host, Process, find_processes, host_of
from dsprof.trace.readers.nsys.sqlite import MAGIC, Tables
from dsprof.trace.readers.nsys.steps import Range, step_ranges, steps_of
from dsprof.trace.schema import Header, Note, Trailer

RUN_KEY = "Nsight Systems"
_MARKS = (b"TARGET_INFO_", b"StringIds", b"CUPTI_ACTIVITY_KIND_")


class NsysReader:
    """Reads one export, whole."""

    name = "Nsight Systems export"
    tells = Facts.TIMELINE | Facts.DEVICE
    order = 30

    def recognises(self, start: bytes) -> bool:
        return start.startswith(MAGIC) and any(mark in start for mark in _MARKS)

    def read_headers(self, path: Path) -> Sequence[Header]:
        """Read which processes used a device; none is a `TraceError`."""
        with Tables(path) as tables:
            host = host_of(tables)
            return [_header(path, host, process) for process in _processes(tables, path, host)]

    def read_traces(self, path: Path) -> Iterable[RankTrace]:
        """Read the processes that used a device, one rank each."""
        with Tables(path) as tables:
            host = host_of(tables)
            processes = _processes(tables, path, host)
            told = Told(Work.of(tables), step_ranges(tables), issues(tables), host_work(tables))
            traces = [_trace(path, host, process, told) for process in processes]
            for trace in traces:
                trace.nbytes = tables.nbytes // len(traces)
                trace.broken_lines = tables.broken if trace is traces[0] else 0
                trace.trailer = None if tables.broken else Trailer(reason="exit")
        return traces


def _processes(tables: Tables, path: Path, host: Host) -> list[Process]:
    if found := find_processes(tables, path, host):
        return found
    damage = " that can be read" if tables.broken else ""
    calls = "CUPTI_ACTIVITY_KIND_RUNTIME"
    remedy = "; record with `nsys profile --trace=cuda,nvtx` and export again"
    if not damage and tables.has(calls) and any(tables.rows(f"SELECT 1 FROM {calls} LIMIT 1")):
        remedy = (
            ", although it has CUDA calls; record again with an nsys that supports the driver, "
            "and let the program end by itself"
        )
    raise TraceError(
        f"{path}: an export of Nsight Systems without kernels or copies{damage}{remedy}"
    )


class Told(NamedTuple):
    """All processes, as the tables describe them."""

    work: Work
    ranges: Sequence[Range]
    issues: Mapping[Kernel, Issue]
    hosts: Mapping[int, HostWork]


def _trace(path: Path, host: Host, process: Process, told: Told) -> RankTrace:
    mine = told.work.of_process(process.id)
    steps = steps_of(told.ranges, process.id, process.start_ns)
    rows, groups = CallRows(steps), GroupTable()
    device = activity(mine, process.start_ns)
    if work := told.hosts.get(process.id):
        device.host = work.moved(-process.start_ns)
    rows.add(calls(device, groups, process, told.issues))
    trace = RankTrace(str(path), _header(path, host, process), rows.build())
    trace.device, trace.steps, trace.groups = device, steps, groups.by_number()
    trace.notes = [Note(text) for text in (*process.notes, *mine.notes)]
    return trace


def _header(path: Path, host: Host, process: Process) -> Header:
    start_ns = host.started_epoch_ns + process.start_ns
    return foreign_header(
        path,
        RUN_KEY,
        process.rank,
        process.world_size,
        host=host.name,
        pid=process.pid,
        started_epoch_ns=start_ns,
        started_monotonic_ns=start_ns,
        # The processes of one recording share its clock; two recordings are only set by UTC.
        boot_id=f"{host.name} {host.started_epoch_ns}",
        device="cuda",
        versions=host.versions,
    )


READER: Reader = NsysReader()
