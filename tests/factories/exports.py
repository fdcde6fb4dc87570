"""Writes what Nsight Systems, NCCL Inspector and torch's execution trace observer export."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

START_NS = 1_700_000_000 * 10**9
MS = 1_000_000

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "ampere_sgemm_128x64_tn"

Row = tuple[Any, ...]


def global_pid(pid: int) -> int:
    """The id of a process in an nsys export."""
    return 0x112 << 48 | pid << 24


def nsys(
    path: Path,
    kernels: Sequence[tuple[str, float, float]] = (),
    copies: Sequence[tuple[float, float]] = (),
    *,
    pid: int = 100,
    device: int = 0,
    stream: int = 7,
    **more: Any,
) -> Path:
    """Write or extend an export; kernels are (name, start, length), times in ms.

    `more`: ranks {pid: rank}, ranges [(text, start, length)], graphs as copies, environment {...},
    calls of the runtime as kernels, host, started_ns, without {"table.column", ...}. Each kernel
    is launched as it starts.
    """
    left_out, started = more.get("without", set()), more.get("started_ns", START_NS)
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA synchronous=OFF")
        texts = _table(file, "StringIds", ["id", "value"], left_out)
        _table(file, "TARGET_INFO_SYSTEM_ENV", ["name", "value"], left_out)
        _table(file, "TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"], left_out)
        columns = ["start", "end", "deviceId", "streamId", "globalPid"]
        named = [*columns, "demangledName", "correlationId"]
        _table(file, "CUPTI_ACTIVITY_KIND_KERNEL", named, left_out)
        _table(file, "CUPTI_ACTIVITY_KIND_RUNTIME", _LAUNCH, left_out)
        _table(file, "CUPTI_ACTIVITY_KIND_MEMCPY", [*columns, "copyKind"], left_out)
        place = {"deviceId": device, "streamId": stream, "globalPid": global_pid(pid)}
        for name, at, took in kernels:
            code = _code(file, name) if texts else 1
            row = {"start": int(at * MS), "end": int((at + took) * MS), "demangledName": code}
            number = file.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0]
            _insert(file, "CUPTI_ACTIVITY_KIND_KERNEL", place | row | {"correlationId": number})
            launch = (int(at * MS), global_pid(pid) + pid, number, None, None)
            _insert(file, "CUPTI_ACTIVITY_KIND_RUNTIME", dict(zip(_LAUNCH, launch, strict=True)))
        for name, at, took in more.get("calls", ()):
            times = (int(at * MS), global_pid(pid) + pid, None, int((at + took) * MS))
            call = dict(zip(_LAUNCH, (*times, _code(file, name)), strict=True))
            _insert(file, "CUPTI_ACTIVITY_KIND_RUNTIME", call)
        for at, took in copies:
            row = {"start": int(at * MS), "end": int((at + took) * MS), "copyKind": 1}
            _insert(file, "CUPTI_ACTIVITY_KIND_MEMCPY", place | row)
        if graphs := more.get("graphs"):
            _table(file, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", columns, left_out)
            for at, took in graphs:
                row = {"start": int(at * MS), "end": int((at + took) * MS)}
                _insert(file, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", place | row)
        if ranks := more.get("ranks"):
            _table(file, "MPI_RANKS", ["globalTid", "rank"], left_out)
            for one, rank in ranks.items():
                _insert(file, "MPI_RANKS", {"globalTid": global_pid(one) + one, "rank": rank})
        if ranges := more.get("ranges"):
            _table(file, "NVTX_EVENTS", _NVTX, left_out)
            for i, (text, at, took) in enumerate(ranges):
                registered = bool(i % 2)
                row = {
                    "start": int(at * MS),
                    "end": int((at + took) * MS) if took else None,
                    "text": None if registered else text,
                    "textId": _code(file, text) if registered else None,
                    "globalTid": global_pid(pid) + pid,
                }
                _insert(file, "NVTX_EVENTS", row)
        facts = {"Hostname": more.get("host", "node7")}
        if environment := more.get("environment"):
            pairs = [f"{name}={value}" for name, value in environment.items()]
            facts["DeviceEnvironment"] = "\0".join(["SECRET=1", *pairs])
        for name, value in facts.items():
            _insert(file, "TARGET_INFO_SYSTEM_ENV", {"name": name, "value": value})
        _insert(file, "TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": started})
    file.close()
    return path


_NVTX = ["start", "end", "text", "globalTid", "textId", "binaryData"]
_LAUNCH = ["start", "globalTid", "correlationId", "end", "nameId"]
_SCHEMAS = {
    1: {"NCCL communicator ID": 0, "No. of ranks": 8},
    2: {"NCCL communicator ID": 0, "Message size [bytes]": 8},
}


def nccl_ranges(path: Path, ranges: Sequence[tuple[str, float, bytes]], pid: int = 100) -> Path:
    """Add ranges of NCCL to an export: (name, start in ms, payload), and what payloads mean."""
    with sqlite3.connect(path) as file:
        _table(file, "NVTX_EVENTS", _NVTX, set())
        entries = ["domainId", "schemaId", "name", "offset"]
        _table(file, "NVTX_PAYLOAD_SCHEMA_ENTRIES", entries, set())
        for schema, fields in _SCHEMAS.items():
            for name, offset in fields.items():
                row = dict(zip(entries, (9, schema, name, offset), strict=True))
                _insert(file, "NVTX_PAYLOAD_SCHEMA_ENTRIES", row)
        for name, at, payload in ranges:
            row = {"start": int(at * MS), "globalTid": global_pid(pid) + pid}
            row |= {"textId": _code(file, name), "binaryData": payload}
            _insert(file, "NVTX_EVENTS", row)
    file.close()
    return path


def joined(communicator: int, ranks: int) -> bytes:
    """The payload of a call that makes a communicator."""
    body = struct.pack("<QIIII", communicator, ranks, 0, 0, 0)
    return struct.pack("<QQQQ", 9, 1, len(body), 32) + body


def sent(communicator: int, nbytes: int) -> bytes:
    """The payload of a collective."""
    body = struct.pack("<QQII", communicator, nbytes, 0, 0)
    return struct.pack("<QQQQ", 9, 2, len(body), 32) + body


def _table(file: sqlite3.Connection, name: str, columns: list[str], left_out: set[str]) -> bool:
    kept = [column for column in columns if f"{name}.{column}" not in left_out]
    if name in left_out:
        return False
    file.execute(f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(f'{c} ANY' for c in kept)})")
    return True


def _insert(file: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    there = {column for _, column, *_ in file.execute(f"PRAGMA table_info({table})")}
    kept = {name: value for name, value in row.items() if name in there}
    if kept:
        marks = ",".join("?" * len(kept))
        file.execute(f"INSERT INTO {table} ({','.join(kept)}) VALUES ({marks})", [*kept.values()])


def _code(file: sqlite3.Connection, text: str) -> int:
    known = file.execute("SELECT id FROM StringIds WHERE value = ?", (text,)).fetchone()
    if known:
        return int(known[0])
    code = file.execute("SELECT count(*) FROM StringIds").fetchone()[0] + 1
    file.execute("INSERT INTO StringIds VALUES (?, ?)", (code, text))
    return int(code)


def communicator(rank: int = 0, n_ranks: int = 2, name: str = "0xa", **metadata: Any) -> Any:
    """Who wrote a record of NCCL Inspector."""
    return {
        "header": {"id": name, "rank": rank, "n_ranks": n_ranks, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "dump_timestamp_us": START_NS // 1000,
            "hostname": "node7",
            "pid": 100 + rank,
        }
        | metadata,
    }


def collective(number: int, nbytes: int, took_us: int, op: str = "AllReduce") -> Any:
    """What NCCL Inspector says of a collective."""
    return {
        "coll_perf": {
            "coll": op,
            "coll_sn": number,
            "coll_msg_size_bytes": nbytes,
            "coll_exec_time_us": took_us,
            "coll_algobw_gbs": 1.5,
        }
    }


def node(name: str, inputs: Sequence[Any], types: Sequence[str], **more: Any) -> dict[str, Any]:
    """A node of an execution trace, in the schemas since 1.0.2; `more` become attributes."""
    shapes = [[] for _ in inputs]
    attributes = [{"name": "rf_id", "type": "uint64", "value": 7}]
    attributes += [{"name": key, "type": "any", "value": value} for key, value in more.items()]
    return {
        "id": 5,
        "name": name,
        "ctrl_deps": 2,
        "inputs": {"values": list(inputs), "shapes": shapes, "types": list(types)},
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": attributes,
    }


def tensor(elements: int, device: str = "cuda:0") -> list[Any]:
    return [3, 4, 0, elements, 4, device]


def params(op: str, rank: int, elements: int, start: int = 0, stride: int = 1) -> dict[str, Any]:
    """A collective as torch's NCCL group records it since schema 1.1.0."""
    group = ["0", "default_pg"]
    values = [[tensor(elements)], 33, group, rank, op, [], [], start, stride, 4]
    types = ["GenericList[Tensor(float)]", "Int", "Tuple[String,String]", "Int", "String"]
    types += ["GenericList[]", "GenericList[]", "Int", "Int", "Int"]
    attributes = {"dtype": "Float", "in_msg_nelems": elements, "out_msg_nelems": elements}
    return node("record_param_comms", values, types, pg_name="0", pg_size=4, **attributes)


def old_params(
    op: str, rank: int, elements: int, splits: Sequence[int] = (), group: int = 94398426290464
) -> dict[str, Any]:
    """A collective in schema 1.0.1: the group is an address, its size only in the splits."""
    return {
        "name": "record_param_comms",
        "id": 5,
        "inputs": [[tensor(elements)], 33, group, rank, op, list(splits), list(splits)],
        "input_types": ["GenericList[Tensor(float)]", "Int", "Int", "Int", "String"]
        + ["GenericList[]"] * 2,
        "outputs": [[tensor(elements)]],
    }


def groups(*sizes: int) -> dict[str, Any]:
    """The node that lists the process groups; the first is the world."""
    told = [
        {"pg_name": str(i), "pg_desc": "default_pg" if not i else "undefined", "ranks": []}
        | {"backend_config": "cuda:nccl", "group_size": size}
        for i, size in enumerate(sizes)
    ]
    return node("## process_group:init ##", [json.dumps(told)], ["String"])


def execution_trace(nodes: Sequence[Any], schema: str = "1.1.1-chakra.0.0.4") -> bytes:
    """The file of one rank."""
    head = {"schema": schema, "pid": 77, "time": "2024-03-21 18:54:23", "start_ts": 1}
    return json.dumps(head | {"nodes": list(nodes), "finish_ts": 9}, indent=2).encode()
