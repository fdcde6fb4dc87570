"""NCCL's own NVTX ranges in an nsys export: what each call was, of which size, in which group.

A range is of the host. Its kernel is the next that the same thread launches; where several calls
come before a launch (a group), or several launches after a call, their order is unknown.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dsprof.trace.collectives import SHARDED
from dsprof.trace.readers.nsys.device_work import KERNELS
from dsprof.trace.readers.nsys.processes import process_of
from dsprof.trace.readers.nsys.sqlite import Tables

_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
_COLLECTIVES = {
    "ncclAllReduce": "all_reduce",
    "ncclAllGather": "all_gather",
    "ncclReduceScatter": "reduce_scatter",
    "ncclBroadcast": "broadcast",
    "ncclBcast": "broadcast",
    "ncclReduce": "reduce",
    "ncclAlltoAll": "all_to_all",
}
_OTHERS = ("ncclSend", "ncclRecv", "ncclGather", "ncclScatter")  # they launch kernels, too
_FIELDS = {
    "Message size [bytes]": "nbytes",
    "NCCL communicator ID": "communicator",
    "No. of ranks": "ranks",
}
_WIDTHS = {"nbytes": 8, "communicator": 8, "ranks": 4}
_HEADER_BYTES = 32  # domain, schema, size of the payload, and one more number, 8 bytes each
_MOST_ROWS = 1_000_000
_MOST_NAMES = 10_000
_LONGEST_NAME = 100

Kernel = tuple[int, int, int]  # process, stream, start


class Issue(NamedTuple):
    """A call of NCCL on the host; what the export does not tell is 0 or ""."""

    op: str
    nbytes: int  # of the total array
    communicator: str
    ranks: int


def issues(tables: Tables) -> dict[Kernel, Issue]:
    """Return the call behind each kernel of NCCL of which that is certain; times of the file."""
    ranges = _ranges(tables)
    found: dict[Kernel, Issue] = {}
    if not ranges:
        return found
    for thread, launched in _launches(tables).items():
        mine = ranges.get(thread, [])
        starts = np.array([start for start, _ in mine], np.int64)
        launches = np.array([moment for moment, _ in launched], np.int64)
        last = np.searchsorted(starts, launches, side="right").tolist()
        for i, (_, kernel) in enumerate(launched):
            before, place = last[i - 1] if i else 0, last[i]
            is_alone = last[i + 1 : i + 2] != [place]
            if place == before + 1 and is_alone and mine[place - 1][1].op:
                found[kernel] = mine[place - 1][1]
    return found


def _launches(tables: Tables) -> Mapping[int, list[tuple[int, Kernel]]]:
    """Return when each thread launched which communication kernel, in that order."""
    found: defaultdict[int, list[tuple[int, Kernel]]] = defaultdict(list)
    name = next((n for n in ("demangledName", "shortName") if tables.has(KERNELS, n)), "")
    needed = ("correlationId", "globalPid", "streamId", "start")
    has_kernels = bool(name) and tables.has(KERNELS, *needed) and tables.has("StringIds", "value")
    if not (has_kernels and tables.has(_RUNTIME, "correlationId", "globalTid", "start")):
        return found
    names = f"SELECT id FROM StringIds WHERE value LIKE '%nccl%' LIMIT {_MOST_NAMES}"
    chosen = ",".join(str(code) for (code,) in tables.integers(names))
    # The order of the join keeps the index small: on kernels of a few names, not on all calls.
    query = (
        f"SELECT r.start, r.globalTid, k.globalPid, k.streamId, k.start FROM {_RUNTIME} r "
        f"CROSS JOIN {KERNELS} k ON k.correlationId = r.correlationId AND k.{name} IN ({chosen}) "
        f"LIMIT {_MOST_ROWS}"
    )
    for moment, thread, process, stream, start in tables.integers(query):
        if process_of(thread) == process_of(process):
            found[thread].append((moment, (process, stream, start)))
    for launched in found.values():
        launched.sort()
    return found


def _ranges(tables: Tables) -> dict[int, list[tuple[int, Issue]]]:
    """Return the calls of each thread in the order of their starts."""
    if not tables.has("NVTX_EVENTS", "start", "globalTid", "text"):
        return {}
    (text, join), blob = tables.range_text(), "NULL"
    if tables.has("NVTX_EVENTS", "binaryData"):
        blob = f"substr(n.binaryData, 1, {4 * _HEADER_BYTES})"
    query = (
        f"SELECT n.start, n.globalTid, substr({text}, 1, {_LONGEST_NAME}), {blob} "
        f"FROM NVTX_EVENTS n {join} WHERE typeof(n.start) = 'integer' AND {text} LIKE 'nccl%' "
        f"ORDER BY n.start LIMIT {_MOST_ROWS}"
    )
    schemas = _schemas(tables)
    sizes: dict[int, int] = {}
    found: defaultdict[int, list[tuple[int, Issue]]] = defaultdict(list)
    for start, thread, name, data in tables.rows(query):
        told = _payload(data, schemas)
        if told.get("ranks"):
            sizes[told["communicator"]] = told["ranks"]
        if type(start) is not int or type(thread) is not int:
            continue
        if name in _COLLECTIVES:
            found[thread].append((start, _issue(_COLLECTIVES[name], told, sizes)))
        elif name in _OTHERS:
            found[thread].append((start, Issue("", 0, "", 0)))
    return found


def _issue(op: str, told: Mapping[str, int], sizes: Mapping[int, int]) -> Issue:
    nbytes, communicator = told.get("nbytes", 0), told.get("communicator", 0)
    ranks = sizes.get(communicator, 0)
    total = nbytes * ranks if op in SHARDED else nbytes
    known = 0 < total < 2**62
    return Issue(op, total if known else 0, f"{communicator:#x}" if communicator else "", ranks)


def _schemas(tables: Tables) -> dict[tuple[int, int], dict[str, int]]:
    """Return the places of the fields that are read, by domain and schema."""
    found: defaultdict[tuple[int, int], dict[str, int]] = defaultdict(dict)
    if tables.has(_ENTRIES, "domainId", "schemaId", "name", "offset"):
        rows = tables.rows(f"SELECT domainId, schemaId, name, offset FROM {_ENTRIES} LIMIT 100000")
        for domain, schema, name, offset in rows:
            if name in _FIELDS and type(offset) is int and 0 <= offset < 2 * _HEADER_BYTES:
                found[domain, schema][_FIELDS[name]] = offset
    return found


def _payload(data: object, schemas: Mapping[tuple[int, int], dict[str, int]]) -> dict[str, int]:
    """Return the fields of a range that its payload holds."""
    if not isinstance(data, bytes) or len(data) < _HEADER_BYTES:
        return {}
    domain, schema = struct.unpack_from("<QQ", data)
    told: dict[str, int] = {"communicator": 0}
    for field, offset in schemas.get((domain, schema), {}).items():
        place = _HEADER_BYTES + offset
        value = data[place : place + _WIDTHS[field]]
        told[field] = int.from_bytes(value, "little") if len(value) == _WIDTHS[field] else 0
    return told
