"""A whole file of each format, what it is made of, and how it is read."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.aggregates.snapshots import Snapshots
from dsprof.analysis.hang.flight_recorders import group_states, mismatches
from dsprof.analysis.summarise import summarise
from dsprof.errors import TraceError
from dsprof.findings.finding import Status
from dsprof.rules import RULES
from dsprof.rules.runner import judge
from dsprof.trace.rank_log import MOST_VALUES
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers.logs import LogReader
from dsprof.trace.run import find_run, read_run
from dsprof.trace.trace_files import is_diagnosis
from tests.factories import chakra, exports, flight, kineto, logs, snapshot
from tests.factories.both_parsers import read_by_both
from tests.factories.trace import header
from tests.factories.trace_files import encode, run_events

Read = Callable[[Path], list[RankTrace]]


def by_run(path: Path) -> list[RankTrace]:
    run = find_run([path])
    summarise(run)
    return list(read_run(run))


def by_reader(path: Path) -> list[RankTrace]:
    """Read a trace of dsprof whose damage would hide it from the search for runs."""
    return [read_by_both(path)]


def by_log_reader(path: Path) -> list[RankTrace]:
    with path.open("rb") as file:
        LogReader().recognises(file.read(1 << 16))
    traces = list(LogReader().read_traces(path))
    for trace in traces:
        assert trace.log is not None
        assert all(len(values) <= MOST_VALUES for values in trace.log.facts.values())
        assert trace.rank < max(1, trace.header.world_size or 1 << 20)
    return traces


def by_judgement(path: Path) -> list[RankTrace]:
    """Judge what is not in a trace's records, too."""
    parts = [FlightRecorders, Snapshots]
    summary = summarise(find_run([path]), parts)
    group_states(summary[FlightRecorders])
    list(mismatches(summary[FlightRecorders]))
    needy = [rule for rule in RULES if set(rule.meta.needs) <= set(parts)]
    assert Status.ERROR not in {finding.status for finding in judge(summary, needy)}
    return by_run(path)


@dataclass(frozen=True)
class Format:
    """A whole file; the document that `encode` made it of, with any value of which it may go on."""

    whole: bytes
    starts: Sequence[bytes]
    document: Any = None
    encode: Callable[[Any], bytes] = json.dumps  # type: ignore[assignment]
    read: Read = by_run
    odd: Sequence[bytes] = ()


def read(one: Format, path: Path, data: bytes | None = None) -> list[RankTrace] | None:
    """Read a file; None if it is refused, as it must be: by one line that names it."""
    if data is not None:
        path.write_bytes(data)
    is_diagnosis(path)
    try:
        return one.read(path)
    except TraceError as refusal:
        message = str(refusal)
    assert message.startswith(str(path))
    assert "\n" not in message
    return None


def made(document: Any, encode: Callable[[Any], bytes], **details: Any) -> Format:
    return Format(encode(document), document=document, encode=encode, **details)


def dumped(document: Any) -> bytes:
    return json.dumps(document, default=str).encode()


def native() -> Format:
    whole = encode(run_events(header()))
    lines = [json.loads(line.strip(b",")) for line in whole.split(b"\n")[1:-2]]
    first = whole.index(b",\n{", 2) + 2

    def joined(lines: Any) -> bytes:
        return ("[\n" + ",\n".join(map(json.dumps, lines)) + "\n]\n").encode()

    return Format(
        whole,
        (b"", whole[:first]),
        lines,
        joined,
        by_reader,
        (
            b"[" * 100_000,
            b'{"cat":"header","args":' * 50_000,
            "[\n{}".encode("utf-16"),
            b"\x1f\x8b",
        ),
    )


def profile() -> Format:
    communication = [kineto.issued(1, 10), kineto.gloo("all_gather", 20, [[8]])]
    steps = kineto.steps(4, 30, 20, 5)
    whole = kineto.document([*steps, kineto.copy(400, 1), *communication])
    start = b'{"schemaVersion": 1, "traceEvents": ['
    odd = [b"[" * 100_000, b'{"traceEvents":' * 50_000, start + b'{"args":' * 50_000]
    odd += [whole.decode().encode("utf-16"), b"\xef\xbb\xbf" + whole, b"PK\x03\x04" + whole]
    return Format(whole, (b"", start), json.loads(whole), dumped, odd=odd)


def zipped(files: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def packed() -> Format:
    def encode(document: Any) -> bytes:
        return gzip.compress(dumped(document), 1, mtime=0)

    return made(profile().document, encode, starts=(b"\x1f\x8b", b"\x1f\x8b\x08\x00"))


def archive() -> Format:
    def encode(document: Any) -> bytes:
        return zipped({"rank0.json": dumped(document)})

    nameless = bytearray(encode(profile().document))
    nameless[nameless.rindex(b"rank0.json")] = 0
    starts = (b"PK\x03\x04", b"PK\x05\x06")
    return made(profile().document, encode, starts=starts, odd=[bytes(nameless)])


LINES = logs.run(
    logs.every("Using network IB"),
    logs.every("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>"),
    logs.said("Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0(3)/GDRDMA/Shared"),
    logs.said("NCCL_ALGO set by environment to Ring"),
    logs.said("Bootstrap : no socket interface found", level="WARN"),
    "[rank2]: " + logs.out_of_memory(others="Process 1 has 3.00 GiB memory in use. "),
    "[rank1]: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, "
    "OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=6) ran for 60 milliseconds",
    "DeepSpeed info: version=0.19.8, git-hash=x",
    logs.call("all_reduce", 3.5),
    logs.table("broadcast", ("2.0 KB", 146, 11.12, 0.08, 0.43, 0.41)),
)


def log() -> Format:
    whole = "\n".join(LINES).encode()
    odd = [whole.decode().encode("utf-16"), b"\xef\xbb\xbf" + whole]
    odd += [whole.replace(b"\n", b"\r\n"), whole.replace(b"\n", b"\r")]
    odd += [whole[:10] + one * 70_000 + whole[10:] for one in (b"\0", b"9", b"[")]
    odd += [
        (" " * 60_000 + LINES[0]).encode(),
        (LINES[0] + " " * 60_000 + "x").encode(),
        b"a:1:1 " * 10_000 + b"[0] NCCL INFO x",
        b"Channel 0 : " + b"0[0] -> " * 8000,
        b"x NCCL INFO NET/IB : Using " + b"[0]a " * 12_000,
        b"NCCL " * 13_000,
    ]
    starts = (b"", b"a:1:2 [0] NCCL INFO ", b"comm op: ")
    return Format(whole, starts, read=by_log_reader, odd=odd)


def collected() -> Format:
    """A log that a collector keeps as objects."""
    each = [{"log": f"{line}\n", "stream": "stderr"} for line in LINES]
    whole = "\n".join(map(json.dumps, each)).encode()
    odd = [json.dumps(each, indent=indent).encode() for indent in (None, 1)]
    odd += [whole.replace(b"comm", b"\\ud83d"), b'{"log":' + b" " * 70_000 + b'"x"}']
    odd += [b"[" + blank * 70_000 + b'\n"message": "NCCL INFO x"' for blank in (b"\n", b" ")]
    odd += [b'{"log": "' + b'\\"log": "' * 8000, b'1234567890,"' + b'"' * 60_000]
    return Format(whole, (b"", b'{"log": "', b"[\n{\n"), read=by_log_reader, odd=odd)


CALLS = [flight.call(1, done=True), flight.call(2, line=7), flight.call(2, group="5")]
DUMP = flight.document([*CALLS, flight.call(3, "send 0->1")], {"0": [0, 1], "5": [1]})
HISTORY = [snapshot.event("alloc", 1, 5), snapshot.event("free_requested", 1, 5)]
SNAPSHOT = snapshot.document([snapshot.segment(10, -6), snapshot.segment(-20)], HISTORY)


def of_pickle(document: Any, *keys: bytes) -> Format:
    """A pickle by the old protocol, which snapshots and dumps of some releases have, or the new."""
    named = b"".join(b"\x8c" + bytes([len(key)]) + key for key in keys)
    starts = [b"\x80\x02" + named, b"\x80\x04" + named]
    odd = [
        start + one
        for start in starts
        for one in (b"]" * 100_000, b"(" * 100_000, b"(]" * 50_000 + b"." * 10)
    ]

    def encode(document: Any) -> bytes:
        return pickle.dumps(document, 2 if len(str(document)) % 2 else 4)

    return made(document, encode, starts=starts, odd=odd, read=by_judgement)


def dump() -> Format:
    return of_pickle(DUMP, b"pg_config", b"pg_status")


def dump_in_json() -> Format:
    return made(DUMP, dumped, starts=(b'{"pg_config": {}, "pg_status": {}, ',), read=by_judgement)


def memory() -> Format:
    return of_pickle(SNAPSHOT, b"segments", b"total_size")


def inspector() -> Format:
    lines = [exports.communicator(1, 4) | exports.collective(i, 1 << 20, 100) for i in range(20)]
    lines[-1]["dump_stats"] = {"coll_dropped_total": 0}

    def encode(lines: Any) -> bytes:
        return b"\n".join(map(dumped, lines))

    starts = (b'{"metadata": {"inspector_output_format_version": ""}}', b"")
    odd = [b"{" * 100_000, b'{"inspector_output_format_version":' * 50_000]
    return made(lines, encode, starts=starts, odd=odd)


def execution() -> Format:
    told = exports.node("## process_group:init ##", [json.dumps([{}])], ["String"])
    nodes = [told, exports.groups(4, 2)]
    nodes += [exports.params("allreduce", 1, 100 + i) for i in range(5)]
    start = b'{"schema": "1.1.1-chakra.0.0.4", "nodes": ['
    return made(nodes, exports.execution_trace, starts=(start,), odd=[start + b'{"id":' * 50_000])


TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": 7,
    "CUPTI_ACTIVITY_KIND_RUNTIME": 5,
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": 4,
}
"""Tables that take rows of any values, with as many columns."""


@cache
def export() -> bytes:
    path = Path(tempfile.mkdtemp()) / "export"
    kernels = [(exports.GEMM, i, 0.5) for i in range(60)] + [(exports.NCCL, 9, 5)]
    exports.nsys(
        path,
        kernels,
        [(i, 0.1) for i in range(60)],
        ranks={100: 1},
        ranges=[(f"step {i}", i, 1) for i in range(9)],
        environment={"RANK": 1, "WORLD_SIZE": 2},
    )
    joined, sent = exports.joined(5, 2), exports.sent(5, 64)
    exports.nccl_ranges(path, [("ncclCommInitRank", 1, joined), ("ncclAllReduce", 8.9, sent)])
    data = path.read_bytes()
    path.unlink()
    path.parent.rmdir()
    return data


def with_rows(document: Any) -> bytes:
    """The export with rows of any values more, and an offset of its payloads changed."""
    with tempfile.NamedTemporaryFile() as made:
        Path(made.name).write_bytes(export())
        file = sqlite3.connect(made.name)
        for table, columns in TABLES.items():
            for row in _rows(document, table, columns):
                file.execute(f"INSERT INTO {table} VALUES ({','.join('?' * columns)})", row)
        for (offset,) in _rows(document, "offset", 1):
            fields = "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET offset = ? WHERE schemaId = 2"
            file.execute(fields, [offset])
        query = "INSERT INTO NVTX_EVENTS (start, globalTid, text, binaryData) VALUES (?, ?, ?, ?)"
        for row in _rows(document, "ranges", 4):
            file.execute(query, row)
        file.commit()
        file.close()
        return Path(made.name).read_bytes()


def _rows(document: Any, table: str, columns: int) -> list[list[Any]]:
    row = document.get(table)
    row = row if isinstance(row, list) else [row] * columns if table in document else []
    return [[_stored(value) for value in row]] if len(row) == columns else []


def _stored(value: Any) -> Any:
    """What SQLite can store."""
    if isinstance(value, (list, dict)):
        return repr(value).encode()
    return str(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def nsys() -> Format:
    rows = {table: list(range(1, columns + 1)) for table, columns in TABLES.items()}
    ranges = [1, 1, "ncclAllGather", exports.sent(5, 64).hex()]
    document = rows | {"offset": [8], "ranges": ranges}
    broken = export().replace(b"CREATE TABLE StringIds (", b"CREATE TABLE StringIds \x80", 1)
    start = b"SQLite format 3\x00"
    return Format(export(), (start, export()[:100]), document, with_rows, odd=[start, broken])


def graph() -> Format:
    """Its document is what the node says that lists the groups, and one that communicates."""
    after = [chakra.groups(4, 2), chakra.node(5, "aten::add", chakra.COMPUTE)]
    after += [chakra.collective(op, 1000, pg_name="1") for op in chakra.COLLECTIVES]
    after += [chakra.node(0, "", chakra.SEND, comm_size=10, involved_dim=[True, False])]
    rest = b"".join(after)
    group = {"pg_name": "0", "group_size": 4, "pg_desc": "", "ranks": [], "backend_config": ""}
    document = {
        "groups": [group],
        "op": {"comm_type": 0, "comm_size": 2**39, "pg_name": "0", "involved_dim": [True]},
        "bytes": "",
    }

    def encode(document: Any) -> bytes:
        text = document.get("groups")
        told = text if isinstance(text, str) else str([json.dumps(text, default=str)])
        noise = repr(document.get("bytes")).encode("utf-8", "replace")
        op = document.get("op")
        values = op.items() if isinstance(op, dict) else [("comm_type", op)]
        attributes = {key: _attribute(value) for key, value in values}
        nodes = chakra.node(2, "## process_group:init ##", 1, inputs=told)
        nodes += chakra.node(7, "", chakra.COLLECTIVE, **attributes)
        nodes += chakra.framed(chakra.number(3, 7) + chakra.sized(10, noise)) + chakra.framed(noise)
        return chakra.CONVERTED + nodes + rest

    endless = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    start = chakra.CONVERTED + chakra.node(1, "", chakra.COMPUTE)
    starts = (start, start + b"\x20", start + chakra.framed(chakra.number(3, 7) + b"\x52"))
    odd = [start + endless, start + chakra.framed(endless) + rest]
    odd += [encode(document | {"groups": text}) for text in ("[{" * 500_000, "[" * 500_000 + "{")]
    return Format(chakra.CONVERTED + rest, starts, document, encode, odd=odd)


def _attribute(value: Any) -> Any:
    """What an attribute may be."""
    if isinstance(value, (list, dict)):
        return [bool(one) for one in value]
    return value if isinstance(value, (bool, int)) else str(value)


FORMATS: Mapping[str, Callable[[], Format]] = {
    "native": cache(native),
    "kineto": cache(profile),
    "gzip": cache(packed),
    "zip": cache(archive),
    "log": cache(log),
    "collected": cache(collected),
    "dump": cache(dump),
    "json": cache(dump_in_json),
    "snapshot": cache(memory),
    "inspector": cache(inspector),
    "execution": cache(execution),
    "nsys": cache(nsys),
    "chakra": cache(graph),
}
