"""Which processes an nsys export holds, on which host, and which ranks they were."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from dsprof.trace.columns import IntArray
from dsprof.trace.readers.base import rank_in_name
from dsprof.trace.readers.nsys.device_work import NEEDED, TABLES, process_column
from dsprof.trace.readers.nsys.sqlite import Tables
from dsprof.trace.schema import LARGEST_WORLD

_THREAD_BITS = 24  # of a global id: host and machine, process, thread
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_MPI_MARK = re.compile(r"MPI Rank (\d{1,7})")
_MOST_PROCESSES = 1_024
_LATEST_NS = 2**62

_Ids = TypeVar("_Ids", int, IntArray)


@dataclass(frozen=True, slots=True)
class Host:
    """Where and when the recording was made."""

    name: str
    started_epoch_ns: int
    environment: dict[str, str]  # of the recorder, and only what names a rank or the ranks
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Process:
    """A process that used a device; `start_ns` is that of its first work."""

    id: int
    device: int
    start_ns: int
    rank: int = -1
    world_size: int = 0
    notes: Sequence[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """The process's id on its host."""
        return self.id >> _THREAD_BITS & (1 << _THREAD_BITS) - 1


def process_of(threads: _Ids) -> _Ids:
    """Return the global ids of the processes of `threads`, which are global ids, too."""
    return threads >> _THREAD_BITS << _THREAD_BITS


def host_of(tables: Tables) -> Host:
    """Read what the export says about the host and the recording."""
    facts = _texts(tables, "TARGET_INFO_SYSTEM_ENV", ("Hostname", "DeviceEnvironment"))
    export = _texts(tables, "EXPORT_META_DATA", ("EXPORT_PRODUCT_VERSION",))
    given = (one.partition("=") for one in facts.get("DeviceEnvironment", "").split("\0"))
    environment = {name: value for name, _, value in given if name in {*_RANKS, *_SIZES}}
    versions = {
        "device": _device_names(tables),
        "nsys": export.get("EXPORT_PRODUCT_VERSION", "")[:40],
    }
    return Host(
        name=facts.get("Hostname", "")[:255],
        started_epoch_ns=_started(tables),
        environment=environment,
        versions={name: version for name, version in versions.items() if version},
    )


def find_processes(tables: Tables, path: Path, host: Host) -> list[Process]:
    """Find the processes with work on a device, and which ranks they were."""
    found = sorted(_with_work(tables).values(), key=lambda one: (one.device, one.id))
    found = found[:_MOST_PROCESSES]
    told = _told_ranks(tables)
    ranks = [told.get(process.id, -1) for process in found]
    size = 0
    if len(found) == 1:
        size = _first_number(host.environment, _SIZES, 0)
        outside = (_first_number(host.environment, _RANKS, -1), rank_in_name(path), 0)
        ranks = [next(rank for rank in (*ranks, *outside) if rank >= 0)]
    notes = []
    if len({*ranks}) < len(ranks) or -1 in ranks:
        ranks = list(range(len(found)))
        notes = [
            f"which rank each process of {path.name} was is not in it: numbered by their devices"
        ]
    size = size if size > max(ranks, default=0) else 0
    return [
        replace(process, rank=rank, world_size=size, notes=notes)
        for process, rank in zip(found, ranks, strict=True)
    ]


def _with_work(tables: Tables) -> dict[int, Process]:
    found: dict[int, Process] = {}
    for table in TABLES:
        if not tables.has(table, *NEEDED):
            continue
        process = process_column(tables, table)
        query = (
            f"SELECT {process}, deviceId, min(start) FROM {table} WHERE typeof(start) = 'integer' "
            f"AND typeof(end) = 'integer' AND end >= start AND typeof({process}) = 'integer' AND "
            f"typeof(deviceId) = 'integer' GROUP BY {process}, deviceId"
        )
        for number, device, start_ns in tables.integers(query):
            if abs(start_ns) < _LATEST_NS:
                known = found.get(number, Process(number, device, start_ns))
                found[number] = replace(known, start_ns=min(start_ns, known.start_ns))
    return found


def _told_ranks(tables: Tables) -> dict[int, int]:
    """Return the ranks of processes that MPI told nsys, by table or, in old versions, by a mark."""
    told: dict[int, int] = {}
    if tables.has("MPI_RANKS", "globalTid", "rank"):
        pairs = list(tables.rows("SELECT globalTid, rank FROM MPI_RANKS LIMIT 10000"))
    elif tables.has("NVTX_EVENTS", "globalTid", "text"):
        query = "SELECT globalTid, text FROM NVTX_EVENTS WHERE text LIKE 'MPI Rank %' LIMIT 10000"
        marks = ((thread, _MPI_MARK.fullmatch(str(text))) for thread, text in tables.rows(query))
        pairs = [(thread, int(mark[1])) for thread, mark in marks if mark]
    else:
        pairs = []
    for thread, rank in pairs:
        if type(thread) is int and type(rank) is int and 0 <= rank < LARGEST_WORLD:
            told[process_of(thread)] = rank
    return told


def _started(tables: Tables) -> int:
    table = "TARGET_INFO_SESSION_START_TIME"
    if tables.has(table, "utcEpochNs"):
        for (start,) in tables.rows(f"SELECT utcEpochNs FROM {table} LIMIT 1"):
            return start if type(start) is int and 0 < start < _LATEST_NS else 0
    return 0


def _device_names(tables: Tables) -> str:
    if not tables.has("TARGET_INFO_GPU", "name"):
        return ""
    names = tables.rows("SELECT DISTINCT substr(name, 1, 200) FROM TARGET_INFO_GPU LIMIT 16")
    return ", ".join(sorted(str(name) for (name,) in names))[:200]


def _texts(tables: Tables, table: str, names: Sequence[str]) -> dict[str, str]:
    if not tables.has(table, "name", "value"):
        return {}
    marks = ",".join("?" * len(names))
    query = f"SELECT name, value FROM {table} WHERE name IN ({marks}) LIMIT 100"
    return {str(name): str(value) for name, value in tables.rows(query, *names)}


def _first_number(environment: dict[str, str], names: Sequence[str], default: int) -> int:
    values = [environment[name] for name in names if environment.get(name, "").isdecimal()]
    return int(values[0][:7]) if values else default
