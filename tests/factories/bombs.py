"""Files of every kind that is read, made to stop whoever reads them: huge, nested, wrong, endless.

A maker writes the files of one case into a folder. `scale` is 1 in `make fuzz`, where files take
what a gigabyte of memory must not, and small in the tests, where only what is cheap is full size.
"""

from __future__ import annotations

import copy
import gzip
import json
import os
import pickle
import random
import socket
import sqlite3
import struct
import typing
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from dsprof.diagnosis.model import to_json
from dsprof.trace.lines import LINES
from tests.factories import chakra, exports, flight, kineto, logs, snapshot
from tests.factories import trace as make
from tests.factories.diagnosis import diagnosis
from tests.factories.trace_files import run_events, write_run

Maker = Callable[[Path, float], None]
CASES: dict[str, dict[str, Maker]] = {}
"""Class -> name -> what writes the case."""

MIB = 1 << 20
_FULL_SCALE = 1.0
VALUES: dict[str, Any] = {
    "null": None,
    "flag": True,
    "negative": -1,
    "zero": 0,
    "billion": 10**9,
    "time": 2**62 - 1,
    "int64": 2**63 - 1,
    "beyond": 2**63,
    "huge": 10**400,
    "nan": float("nan"),
    "infinite": float("inf"),
    "fraction": 1.5,
    "word": "x",
    "escape": "\x1b[31m\u202e\x9b\u2028\0",
    "long": "x" * 50_000,
    "list": [],
    "lists": [[1, [2]], {}],
    "object": {},
    "nested": {"a": {"a": [{}]}},
}
"""What stands in a field where something else should."""


def case(kind: str, name: str) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        CASES.setdefault(kind, {})[name] = maker
        return maker

    return register


def file(kind: str, name: str, content: Callable[[float], bytes | Iterable[bytes]]) -> None:
    """Register a case of one file; its parts are written as they are made."""

    def maker(folder: Path, scale: float) -> None:
        made = content(scale)
        with (folder / name).open("wb") as out:
            out.writelines([made] if isinstance(made, bytes) else made)

    label = name if name not in CASES.get(kind, {}) else f"{name} {len(CASES[kind])}"
    case(kind, label)(maker)


def count(full: int, scale: float) -> int:
    return max(2, int(full * scale))


def packed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Gzip, a stream of parts."""
    import zlib

    squeeze = zlib.compressobj(6, zlib.DEFLATED, 31)
    for part in parts:
        yield squeeze.compress(part)
    yield squeeze.flush()


def repeated(start: bytes, part: bytes, times: int, end: bytes = b"") -> Iterator[bytes]:
    """`part` many times, in blocks of a megabyte."""
    block = max(1, MIB // len(part))
    yield start
    for left in range(times, 0, -block):
        yield part * min(block, left)
    yield end


def replaced(document: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield path and document for each field, of lists the first item's, that now has `value`."""
    fields: Iterable[Any] = ()
    if isinstance(document, dict):
        fields = list(document)
    elif isinstance(document, list) and document:
        fields = [0]
    for name in fields:
        changed = document.copy()
        changed[name] = value
        yield str(name), changed
        for path, inner in replaced(document[name], value):
            changed = document.copy()
            changed[name] = inner
            yield f"{name}.{path}", changed


def as_json(value: Any) -> bytes:
    return json.dumps(value).replace("Infinity", "1e999").encode("utf-8", "surrogatepass")


def sample(kind: Any) -> Any:
    """Some value of a type, with every field of a struct, as builtins."""
    if typing.get_origin(kind) in (list, tuple):
        return [sample(typing.get_args(kind)[0])]
    if typing.get_origin(kind) is dict or kind is dict:
        return {"a": sample((*typing.get_args(kind), None, None)[1])}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        config = kind.__struct_config__
        tag = {config.tag_field: config.tag} if config.tag_field else {}
        hints = typing.get_type_hints(kind)
        names = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
        return tag | {encoded: sample(hints[name]) for name, encoded in names}
    args = [one for one in typing.get_args(kind) if one is not type(None)]
    if args:
        return sample(args[0])
    return {int: 1, float: 1.0, bool: True, str: "x"}.get(kind)


# Native traces

HEADER, *BODY = run_events(make.header(0, 1))
RECORDS = [sample(kind) for kind in LINES.values()]


def native(*lines: bytes, before: bytes = b"") -> bytes:
    """A whole trace of one rank with more lines in it."""
    head, *rest = (msgspec.json.encode(one) for one in (HEADER, *BODY))
    return b"[\n" + before + b",\n".join([head, *rest[:-1], *lines, rest[-1]]) + b"\n]\n"


def _native_values(value: Any, _: float) -> bytes:
    return native(*(as_json(new) for one in RECORDS for _, new in replaced(one, value)))


for word, value in VALUES.items():
    file("native", f"trace.rank00000.{word}.json", partial(_native_values, value))


def _headers(folder: Path, scale: float) -> None:
    """Files of which each has another field of the header wrong."""
    head = json.loads(msgspec.json.encode(HEADER))
    for word, value in VALUES.items():
        for path, new in replaced(head, value):
            if len(word) < 5 or scale == _FULL_SCALE:
                name = folder / f"trace.rank00000.{path}.{word}.json"
                name.write_bytes(b"[\n" + as_json(new) + native()[native().index(b",\n") :])


case("native", "headers")(_headers)


def _record(kind: str, **fields: Any) -> bytes:
    one = next(record for record in RECORDS if record["cat"] == kind)
    return msgspec.json.encode(one | {"args": one["args"] | fields, "name": fields.get("name", "")})


def _events(kind: str, number: int, **fields: Any) -> Iterator[bytes]:
    """Many events of a kind that differ in their ids."""
    data = native()
    cut = data.index(b",\n")
    yield data[:cut]
    for start in range(0, number, 10_000):
        rows = range(start, min(number, start + 10_000))
        told = [{name: field(i) for name, field in fields.items()} for i in rows]
        yield b",\n" + b",\n".join(_record(kind, **one) for one in told)
    yield data[cut:]


def _long_list(i: int) -> list[int]:
    return list(range(1_000_000))


NATIVE: dict[str, Callable[[float], bytes | Iterable[bytes]]] = {
    "line": lambda s: native(b'{"cat":"step","args":{"x":"' + b"y" * count(100 * MIB, s) + b'"}}'),
    "digits": lambda s: native(b'{"cat":"step","args":{"step":' + b"9" * count(MIB, s) + b"}}"),
    "deep": lambda s: native(b'{"cat":"step","args":' + b"[" * count(10 * MIB, s)),
    "twice": lambda s: native(*[msgspec.json.encode(HEADER)] * count(1000, s)),
    "trailers": lambda s: native(
        *[msgspec.json.encode(BODY[-1])] * count(1000, s),
        *[msgspec.json.encode(one) for one in BODY],
    ),
    "world": lambda s: native().replace(b'"world_size":1', b'"world_size":1000000000'),
    "large_world": lambda s: native().replace(b'"world_size":1', b'"world_size":1048576'),
    "rank": lambda s: native().replace(b'"rank":0', b'"rank":1000000000'),
    "commas": lambda s: repeated(native()[:-3], b",\n", count(50_000_000, s), b"]\n"),
    "words": lambda s: _events("comm", count(1_000_000, s), name=str, id=int, op=str),
    "groups": lambda s: _events("group", count(300_000, s), id=int, key=str, name=str),
    "members": lambda s: _events("group", count(20, s), id=int, ranks=_long_list),
    "sites": lambda s: _events("site", count(300_000, s), id=int),
    "steps": lambda s: _events("step", count(500_000, s), step=int),
    "phases": lambda s: _events("phase", count(500_000, s), name=str, step=int),
    "annotations": lambda s: _events("user", count(300_000, s), name=str),
    "engines": lambda s: _events("engine", count(100_000, s), engine=int),
    "models": lambda s: _events("model", count(100_000, s), model=int),
    "notes": lambda s: _events("note", count(300_000, s), text=str),
    "memory": lambda s: _events("memory", count(500_000, s), what=str),
    "flushes": lambda s: _events("flush", count(300_000, s), id=int),
    "fetches": lambda s: _events("fetch", count(300_000, s), id=int),
    "copies": lambda s: _events("copy", count(300_000, s), what=str),
    "stalls": lambda s: _events("stall", count(300_000, s), collective=int),
    "counters": lambda s: _events("counters", count(300_000, s), step=int),
    "open": lambda s: _events("open", count(300_000, s), id=int),
    "variables": lambda s: native(
        _record("environment", variables={f"NCCL_{i}": str(i) for i in range(count(50_000, s))})
    ),
    "settings": lambda s: native(
        _record("engine", written={f"key{i}": {"a": i} for i in range(count(100_000, s))})
    ),
    "nul": lambda s: native(b"\0" * count(30 * MIB, s)),
}
for word, content in NATIVE.items():
    file("native", f"trace.rank00000.{word}.json", content)
file(
    "native",
    "empty_lines.json.gz",
    lambda s: packed(repeated(native()[:-3], b"\n" * 1000, count(300_000, s))),
)
file(
    "native",
    "broken_lines.json.gz",
    lambda s: packed(repeated(native()[:-3], b"{}\n", count(20_000_000, s))),
)


# Profiles of torch

PROFILE = b'{"schemaVersion":1,"distributedInfo":{"rank":0,"world_size":1},"traceEvents":[\n'
KERNEL = kineto.document(kineto.steps(3, 1.0, 1.0), 0, 1)


def _profile_values(value: Any, _: float) -> bytes:
    whole = json.loads(KERNEL)
    events = [new for one in whole["traceEvents"][:8] for _, new in replaced(one, value)]
    return as_json(whole | {"traceEvents": [*whole["traceEvents"], *events]})


for word, value in VALUES.items():
    file("kineto", f"{word}.pt.trace.json", partial(_profile_values, value))


def _profile_head(folder: Path, _: float) -> None:
    whole = json.loads(KERNEL)
    events = whole.pop("traceEvents")
    for word, value in list(VALUES.items())[::3]:
        for path, new in replaced(whole, value):
            data = as_json(new | {"traceEvents": events})
            (folder / f"{path}.{word}.pt.trace.json".replace("/", "_")).write_bytes(data)


case("kineto", "heads")(_profile_head)


def _spans(number: int, text: str) -> Iterator[bytes]:
    """Events of which `text` % number is one, 10,000 at a time."""
    yield PROFILE
    for start in range(0, number, 10_000):
        block = range(start, min(number, start + 10_000))
        yield "".join(text.replace("#", str(i)) + ",\n" for i in block).encode()
    yield b'{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,"pid":1,"tid":1}]}'


SPAN = '{"ph":"X","cat":"%s","name":"%s","ts":#.5,"dur":1,"pid":1,"tid":1,"args":{%s}}'
OF_KERNEL = '"stream":7,"Collective name":"allreduce","Process Group Name":"#"'
KINETO: dict[str, Callable[[float], Iterable[bytes]]] = {
    "empty": lambda s: repeated(PROFILE, b'{"ph":"X"},', count(20_000_000, s), b"{}]}"),
    "bare": lambda s: repeated(PROFILE, b"{},", count(20_000_000, s), b"{}]}"),
    "phases": lambda s: repeated(PROFILE, b'{"ph":"M"},', count(20_000_000, s), b"{}]}"),
    "broken": lambda s: repeated(PROFILE, b'{"ph":"?"},', count(20_000_000, s), b"{}]}"),
    "blank": lambda s: repeated(PROFILE, b" " * 1000, count(200_000, s), b"{}]}"),
    "head": lambda s: repeated(b'{"schemaVersion":"', b"x" * 1000, count(200_000, s)),
    "tail": lambda s: repeated(KERNEL[:-1] + b',"a":[', b"{},", count(20_000_000, s), b"0]}"),
    "nested": lambda s: repeated(PROFILE, b'{"a":', count(20_000_000, s)),
    "brackets": lambda s: repeated(PROFILE + b'{"a":', b"[{},{},", count(5_000_000, s)),
    "string": lambda s: repeated(PROFILE + b'{"name":"', b"},{", count(20_000_000, s)),
    "names": lambda s: _spans(count(1_000_000, s), SPAN % ("kernel", "k#", "")),
    "categories": lambda s: _spans(count(1_000_000, s), SPAN % ("c#", "x", "")),
    "groups": lambda s: _spans(count(300_000, s), SPAN % ("kernel", "nccl", OF_KERNEL)),
    "steps": lambda s: _spans(count(500_000, s), SPAN % ("user_annotation", "ProfilerStep##", "")),
    "calls": lambda s: _spans(count(500_000, s), SPAN % ("cuda_runtime", "cudaLaunch#", "")),
    "operators": lambda s: _spans(count(1_000_000, s), SPAN % ("cpu_op", "aten::#", "")),
    "threads": lambda s: _spans(
        count(500_000, s), SPAN.replace('"tid":1', '"tid":"t#"') % ("cpu_op", "gloo:all", "")
    ),
    "python": lambda s: _spans(count(500_000, s), SPAN % ("python_function", "f#", "")),
}
for word, content in KINETO.items():
    file("kineto", f"{word}.json.gz", lambda s, content=content: packed(content(s)))
    file("kineto", f"{word}.json", content)


# Pickles

START = b"\x80\x04}X\x08\x00\x00\x00segments]X\x0a\x00\x00\x00total_size"
DUMP = b"\x80\x04}X\x09\x00\x00\x00pg_configX\x09\x00\x00\x00pg_statusX\x07\x00\x00\x00entries"
OPCODES: dict[str, tuple[bytes, int]] = {
    "memoize": (b"\x94", 60_000_000),
    "lists": (b"]\x94", 30_000_000),
    "dicts": (b"}", 30_000_000),
    "marks": (b"(", 60_000_000),
    "tuples": (b"\x85", 30_000_000),
    "triples": (b"]]]\x87", 10_000_000),
    "recalls": (b"h\x00", 60_000_000),
    "puts": (b"r\xff\xff\xff\x7f", 10_000_000),
    "strings": (b"X\xff\x00\x00\x00" + b"x" * 255, 1_000_000),
    "empty_strings": (b"\x8c\x00", 30_000_000),
    "bytes": (b"C\xff" + b"x" * 255, 1_000_000),
    "floats": (b"G" + b"\0" * 8, 10_000_000),
    "ints": (b"J\xff\xff\xff\x7f", 10_000_000),
    "longs": (b"\x8a\xff" + b"\xff" * 255, 100_000),
    "small_longs": (b"\x8a\x10" + b"\xff" * 16, 3_000_000),
    "frames": (b"\x95" + b"\xff" * 8, 10_000_000),
    "nones": (b"N", 60_000_000),
    "append_self": (b"h\x00h\x00a", 10_000_000),
    "unknown": (b"\xfe", 1000),
    "calls": (b"cos\nsystem\n)R", 1000),
    "long4": (b"\x8b\xff\xff\xff\x7f" + b"\xff" * 100, 10),
    "unicode8": (b"\x8d" + b"\xff" * 8, 10),
    "decimal": (b"I" + b"9" * 100_000 + b"\n", 100),
}
for word, (opcode, times) in OPCODES.items():
    for begin, ending in ((START, "snapshot_rank0.pickle"), (DUMP, "dump_rank0.pkl")):
        file(
            "pickle",
            f"{word}_{ending}.gz",
            lambda s, b=begin, o=opcode, t=times: packed(repeated(b, o, count(t, s), b"us.")),
        )
        file(
            "pickle",
            f"{word}_{ending}",
            lambda s, b=begin, o=opcode, t=times: repeated(b, o, count(t // 10, s), b"us."),
        )


def _laughs(depth: int, width: int) -> list[Any]:
    inner: list[Any] = ["lol"]
    for _ in range(depth):
        inner = [inner] * width
    return inner


def _cyclic() -> dict[str, Any]:
    one: dict[str, Any] = {"filename": "a.py", "name": "f"}
    one["frames"] = frames = [one]
    frames.append(frames)
    return snapshot.segment(1.0, frames=frames) | {"blocks": frames, "self": one}


def _snapshots(scale: float) -> dict[str, Any]:
    event = snapshot.event("alloc", 1, 1.0)
    piece = snapshot.segment(1.0)
    return {
        "laughs": snapshot.document([piece | {"blocks": _laughs(40, 10)}]),
        "cyclic": snapshot.document([_cyclic()], [event | {"frames": _cyclic()["frames"]}]),
        "segments": snapshot.document([dict(piece) for _ in range(count(1_000_000, scale))]),
        "shared": snapshot.document([piece] * count(1_000_000, scale)),
        "events": snapshot.document([piece], [event] * count(3_000_000, scale)),
        "callers": snapshot.document(
            [piece], [snapshot.event("alloc", i, 1.0, i) for i in range(count(200_000, scale))]
        ),
        "devices": snapshot.document([piece | {"device": i} for i in range(count(300_000, scale))]),
        "frames": snapshot.document(
            [piece],
            [event | {"frames": event["frames"] * 100_000} for _ in range(count(1000, scale))],
        ),
        "long": snapshot.document(
            [piece],
            [
                event
                | {"frames": [{"filename": "x" * MIB + ".py", "name": "y" * MIB, "line": 10**15}]}
            ],
        ),
    }


def _pickled(make_all: Callable[[float], dict[str, Any]], suffix: str) -> Maker:
    def maker(folder: Path, scale: float) -> None:
        for word, document in make_all(scale).items():
            (folder / f"{word}_{suffix}").write_bytes(pickle.dumps(document, 4))

    return maker


case("snapshot", "shapes")(_pickled(_snapshots, "rank0.pickle"))
FLIGHT = flight.document([flight.call(1)])


def _dumps(scale: float) -> dict[str, Any]:
    one = flight.call(1)
    many = {str(i): {"name": str(i), "ranks": "[0,1]"} for i in range(count(200_000, scale))}
    return {
        "entries": FLIGHT | {"entries": [dict(one) for _ in range(count(300_000, scale))]},
        "groups": FLIGHT | {"pg_config": many, "pg_status": many},
        "of_groups": FLIGHT
        | {
            "entries": [
                one | {"process_group": [str(i), str(i)]} for i in range(count(100_000, scale))
            ]
        },
        "ranks": FLIGHT | {"pg_config": {"0": {"name": "0", "ranks": list(range(2_000_000))}}},
        "ranks_text": FLIGHT | {"pg_config": {"0": {"name": "0", "ranks": "[" * 100_000}}},
        "huge_rank": FLIGHT | {"pg_config": {"0": {"name": "0", "ranks": [10**30, -5]}}},
        "sizes": FLIGHT
        | {"entries": [one | {"input_sizes": [[2**60] * 100] * 1000, "output_sizes": [[-1]]}]},
        "laughs": FLIGHT | {"entries": _laughs(40, 10)},
        "cyclic": FLIGHT | {"entries": [one | {"frames": _cyclic()["frames"]}]},
    }


def _dump_values(folder: Path, _: float) -> None:
    for word, value in VALUES.items():
        entries = [new for _, new in replaced(FLIGHT["entries"][0], value)]
        whole = FLIGHT | {"entries": [*FLIGHT["entries"], *entries]}
        (folder / f"{word}_rank0.json").write_bytes(as_json(whole))
        for path, new in replaced({k: v for k, v in FLIGHT.items() if k != "entries"}, value):
            text = as_json(new | {"entries": FLIGHT["entries"]})
            (folder / f"{word}_{path}_rank0.json".replace("/", "_")).write_bytes(text)


case("flight", "values")(_dump_values)
case("flight", "shapes")(_pickled(_dumps, "rank0.pkl"))
JSON_DUMP = b'{"version":"2.9","pg_config":{},"pg_status":{},"entries":['
for word, part in {"objects": b"{},", "lists": b"[[[]]],", "deep": b"[", "texts": b'"",'}.items():
    file(
        "flight",
        f"{word}_rank0.json.gz",
        lambda s, part=part: packed(repeated(JSON_DUMP, part, count(30_000_000, s), b"{}]}")),
    )
    file(
        "flight",
        f"{word}_rank0.json",
        lambda s, part=part: repeated(JSON_DUMP, part, count(10_000_000, s), b"{}]}"),
    )


def _snapshot_values(folder: Path, _: float) -> None:
    for word, value in VALUES.items():
        event = snapshot.event("alloc", 1, 1.0)
        segments = [new for _, new in replaced(snapshot.segment(1.0, -2.0), value)]
        history = [new for _, new in replaced(event, value)]
        value = snapshot.document([snapshot.segment(1.0), *segments], [event, *history])
        (folder / f"{word}_rank0.pickle").write_bytes(pickle.dumps(value, 4))


case("snapshot", "values")(_snapshot_values)


# Chakra graphs

GRAPH = chakra.CONVERTED + chakra.groups(2) + chakra.collective("ALL_REDUCE", 64, pg_name="0")
CHAKRA: dict[str, Callable[[float], bytes | Iterable[bytes]]] = {
    "tiny": lambda s: repeated(GRAPH, chakra.framed(b"\x08\x01"), count(10_000_000, s)),
    "empty": lambda s: repeated(GRAPH, b"\0", count(50_000_000, s)),
    "nodes": lambda s: repeated(
        GRAPH, chakra.collective("ALL_REDUCE", 64, pg_name="0"), count(500_000, s)
    ),
    "host": lambda s: repeated(
        GRAPH[: len(chakra.CONVERTED)],
        chakra.node(1, "x", chakra.COLLECTIVE, is_cpu_op=True, comm_type=0, comm_size=5),
        count(1_000_000, s),
    ),
    "groups": lambda s: (
        GRAPH
        + b"".join(
            chakra.collective("ALL_GATHER", 64, pg_name=f"g{i}") for i in range(count(300_000, s))
        )
    ),
    "lists": lambda s: repeated(GRAPH, chakra.groups(*range(1000)), count(500, s)),
    "attributes": lambda s: (
        GRAPH
        + chakra.framed(
            chakra.number(3, 7)
            + chakra.sized(10, chakra.attribute("comm_size", 5)) * count(1_000_000, s)
        )
    ),
    "varint": lambda s: GRAPH + b"\xff" * count(10_000_000, s),
    "length": lambda s: GRAPH + b"\xff\xff\xff\xff\x0f" + b"x" * count(10_000_000, s),
    "prefix": lambda s: GRAPH + chakra.framed(b"\x52\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
    "largest": lambda s: GRAPH + chakra.framed(chakra.number(3, 2**64 - 1)),
    "sizes": lambda s: GRAPH + chakra.collective("ALL_REDUCE", 2**63 - 1, pg_name="0") * 50,
    "world": lambda s: chakra.CONVERTED + chakra.groups(10**9, 2**63, 5) + GRAPH,
    "flags": lambda s: (
        GRAPH + chakra.collective("ALL_REDUCE", 5, involved_dim=[True] * count(10_000_000, s))
    ),
    "metadata": lambda s: (
        chakra.metadata(schema="1.1.1", **{f"a{i}": "x" * 20 for i in range(count(500_000, s))})
        + GRAPH[len(chakra.CONVERTED) :]
    ),
}
for word, content in CHAKRA.items():
    file("chakra", f"{word}.0.et", content)
    file(
        "chakra",
        f"{word}.0.et.gz",
        lambda s, content=content: packed(
            [made] if isinstance(made := content(s), bytes) else made
        ),
    )


# Torch's execution traces

NODES = [exports.groups(4, 2), *(exports.params("allreduce", 1, 100 + i) for i in range(3))]
EXECUTION = exports.execution_trace(NODES)
BEGIN = EXECUTION[: EXECUTION.index(b"[", EXECUTION.index(b'"nodes"')) + 1]


def _node_values(value: Any, _: float) -> bytes:
    nodes = [new for one in NODES[:2] for _, new in replaced(one, value)]
    body = b",".join(map(as_json, [*NODES, *nodes]))
    return BEGIN + body + b'],"finish_ts":5}'


for word, value in VALUES.items():
    file("execution", f"{word}.json", partial(_node_values, value))
NODE = json.dumps(NODES[1]).encode()
EXECUTIONS: dict[str, Callable[[float], Iterable[bytes]]] = {
    "tiny": lambda s: repeated(BEGIN, b'{"id":1},', count(5_000_000, s), b"{}]}"),
    "nodes": lambda s: repeated(BEGIN, NODE + b",", count(200_000, s), b"{}]}"),
    "deep": lambda s: repeated(
        BEGIN + b'{"id":1,"name":"record_param_comms","inputs":', b"[", count(20_000_000, s)
    ),
    "objects": lambda s: repeated(BEGIN, b'{"id":', count(5_000_000, s)),
    "names": lambda s: repeated(BEGIN + b"{}", b',{"name":"', count(3_000_000, s)),
    "escapes": lambda s: repeated(BEGIN + b'{},{"name":"', b"\\\\", count(20_000_000, s)),
    "blank": lambda s: repeated(BEGIN + b"{}", b" ", count(50_000_000, s)),
    "brackets": lambda s: repeated(BEGIN + b"{}", b"} , ", count(10_000_000, s)),
    "groups": lambda s: [
        BEGIN,
        *(NODE.replace(b'"0"', b'"g%d"' % i) + b"," for i in range(count(200_000, s))),
        b"{}]}",
    ],
    "tensors": lambda s: [
        BEGIN,
        as_json(
            exports.node(
                "record_param_comms",
                [
                    [exports.tensor(5)] * count(300_000, s),
                    1,
                    ["0", "x"],
                    1,
                    "allreduce",
                    [],
                    [],
                    0,
                    1,
                    4,
                ],
                ["T", "I", "T", "I", "String", "G", "G", "I", "I", "I"],
            )
        ),
        b"]}",
    ],
}
for word, content in EXECUTIONS.items():
    file("execution", f"{word}.json", content)
    file("execution", f"{word}.json.gz", lambda s, content=content: packed(content(s)))


# NCCL Inspector

RECORD = exports.communicator(0, 2) | exports.collective(1, 1 << 20, 100)


def _inspector_values(value: Any, _: float) -> bytes:
    return b"\n".join(map(as_json, [RECORD, *(new for _, new in replaced(RECORD, value))]))


for word, value in VALUES.items():
    file("inspector", f"{word}.log", partial(_inspector_values, value))
SIGNED = as_json(RECORD) + b"\n"
INSPECTED: dict[str, Callable[[float], Iterable[bytes]]] = {
    "empty": lambda s: repeated(SIGNED, b"{}\n", count(20_000_000, s)),
    "records": lambda s: repeated(SIGNED, SIGNED, count(500_000, s)),
    "joined": lambda s: repeated(SIGNED, b"{}{}", count(10_000_000, s)),
    "deep": lambda s: repeated(SIGNED, b'{"a":', count(20_000_000, s)),
    "blank": lambda s: repeated(SIGNED + b"{}", b" ", count(50_000_000, s)),
    "braces": lambda s: repeated(SIGNED, b"} ", count(20_000_000, s)),
    "communicators": lambda s: (
        SIGNED.replace(b"0xa", b"%x" % i) for i in range(count(300_000, s))
    ),
}
for word, content in INSPECTED.items():
    file("inspector", f"{word}.json", content)
    file("inspector", f"{word}.json.gz", lambda s, content=content: packed(content(s)))


# Nsight Systems


def _export(path: Path, *statements: str) -> None:
    kernels = [(exports.GEMM, i, 0.5) for i in range(20)] + [(exports.NCCL, 9, 5)]
    exports.nsys(path, kernels, [(i, 0.1) for i in range(5)], ranges=[("step 1", 1, 9)])
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)
    database.close()


ENDLESS = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT"
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
FILL = "INSERT INTO {} WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t LIMIT {}) "


def _view(table: str) -> list[str]:
    return [f"DROP TABLE {table}", f"CREATE VIEW {table} AS {ENDLESS} x AS start FROM t"]


def _many(table: str, columns: str, number: int) -> list[str]:
    return [(FILL.format(table, number)) + f"SELECT {columns} FROM t"]


NSYS: dict[str, Callable[[float], list[str]]] = {
    "view": lambda s: _view(KERNELS),
    "views": lambda s: [
        *_view("StringIds"),
        *(f"CREATE VIEW NVTX{i} AS {ENDLESS} x FROM t" for i in range(100)),
    ],
    "generated": lambda s: [
        "DROP TABLE StringIds",
        "CREATE TABLE StringIds (id, value AS (hex(zeroblob(1000000))))",
        "INSERT INTO StringIds VALUES (1)",
    ],
    "trigger": lambda s: [
        f"CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM {KERNELS}; END"
    ],
    "blob": lambda s: [
        f"UPDATE StringIds SET value = zeroblob({count(400 * MIB, s)})",
        f"INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', zeroblob({count(200 * MIB, s)}))",
    ],
    "strings": lambda s: _many("StringIds", "x + 9, hex(randomblob(9))", count(1_000_000, s)),
    "kernels": lambda s: _many(
        KERNELS, f"x, x + 1, x, x, {exports.global_pid(5)}, 1, x", count(500_000, s)
    ),
    "processes": lambda s: _many(KERNELS, "x, x + 1, 0, 7, x << 24, 1, x", count(200_000, s)),
    "devices": lambda s: _many(
        KERNELS, f"x, x + 1, x, 7, {exports.global_pid(5)}, 1, x", count(300_000, s)
    ),
    "ranges": lambda s: [
        *_many("NVTX_EVENTS", "x, x + 9, 'step ' || x, 1 << 24, NULL, NULL", count(500_000, s))
    ],
    "null": lambda s: [f"UPDATE {KERNELS} SET start = NULL, globalPid = 'x', streamId = 1e300"],
    "times": lambda s: [f"UPDATE {KERNELS} SET start = -9e18, end = 9e18"],
    "huge": lambda s: [f"UPDATE {KERNELS} SET start = 9223372036854775807, deviceId = -1"],
    "tables": lambda s: [f"CREATE TABLE a{i} (b)" for i in range(count(20_000, s))],
    "columns": lambda s: [
        f"CREATE TABLE a ({','.join(f'c{i}' for i in range(1900))})",
        *(f"CREATE TABLE b{i} AS SELECT * FROM a" for i in range(count(50, s))),
    ],
}
for word, statements in NSYS.items():
    case("nsys", word)(
        lambda folder, scale, word=word, make_all=statements: _export(
            folder / f"{word}.sqlite", *make_all(scale)
        )
    )


@case("nsys", "changed")
def _changed_exports(folder: Path, scale: float) -> None:
    """Columns that lack, a log of changes that nobody wrote back, and schemas edited by hand."""
    for name in ("start", "end", "globalPid", "demangledName", "streamId", "deviceId"):
        exports.nsys(folder / f"no_{name}.sqlite", [("a", 1, 1)], without={f"{KERNELS}.{name}"})
    wal = folder / "wal.sqlite"
    _export(wal)
    database = sqlite3.connect(wal)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute(f"DELETE FROM {KERNELS}")
    database.commit()
    log = (folder / "wal.sqlite-wal").read_bytes()
    database.close()
    (folder / "wal.sqlite-wal").write_bytes(log)
    whole = folder / "whole.sqlite"
    _export(whole)
    data = whole.read_bytes()
    generator = random.Random(5)
    for number in range(count(200, scale)):
        damaged = bytearray(data)
        for _ in range(generator.randint(1, 60)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        damaged[:16] = data[:16]
        (folder / f"damaged{number}.sqlite").write_bytes(damaged)


# Logs

FIRST = logs.said("Bootstrap : Using eth0:10.0.0.1<0>").encode() + b"\n"
LINES: dict[str, str] = {
    "hosts": "host#:#:# [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
    "ready": "h#:#:# [0] NCCL INFO comm 0x7f rank # nranks 1000000 cudaDev 0 busId 1 - "
    "Init COMPLETE",
    "launched": "[rank#]: h#:#:# [0] NCCL INFO Using network IB",
    "mpi": "[1,#]<stdout>: h:1:1 [0] NCCL WARN something # happened",
    "tasks": "#: DeepSpeed info: version=0.19.8, git-hash=x Overflow detected #",
    "comms": "[rank#]: comm op: all_reduce | time (ms): 1.0 | msg size: # B | algbw (Gbps): 1.0 | "
    "busbw (Gbps): 0.75",
    "names": "comm op: op_# | time (ms): 1.0 | msg size: # B | algbw (Gbps): 1.0 | "
    "busbw (Gbps): 0.75",
    "warnings": "h:1:1 [0] NCCL WARN " + "#" * 30,
    "variables": "h:1:1 [0] NCCL INFO NCCL_# set by environment to #.",
    "memory": "[rank#]: " + logs.out_of_memory(asked="#.00 GiB"),
    "places": "h:1:1 [0] NCCL INFO comm 0x7f rank 1 nranks # cudaDev 0 busId 1 - Init COMPLETE",
    "timeouts": "[rank#]: [Rank #] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=#, "
    "OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=6) ran for 60 milliseconds",
    "elastic": "  rank      : # (local_rank: 0)",
    "benchmark": "# Rank # Pid 1 on host# device 0 [0x00] NVIDIA A100",
    "samples": "[rank#]: global_step=#, RunningAvgSamplesPerSec=1.0, CurrSamplesPerSec=1.0, "
    "MemAllocated=1GB, MaxMemAllocated=1GB",
    "errors": "[rank#]: NCCL error in: x.cpp:1, unhandled system error #, NCCL version 2",
}


def _numbered_lines(text: str, number: int) -> Iterator[bytes]:
    yield FIRST
    for start in range(1, number, 10_000):
        block = range(start, min(number, start + 10_000))
        yield "".join(text.replace("#", str(i)) + "\n" for i in block).encode()


for word, text in LINES.items():
    file("log", f"{word}.log", lambda s, text=text: _numbered_lines(text, count(300_000, s)))
    file(
        "log",
        f"{word}.log.gz",
        lambda s, text=text: packed(_numbered_lines(text, count(300_000, s))),
    )
PIECES = [
    *(b"[rank1]: ", b"[1,1]<stdout>: ", b"> ", b"2026-01-01 ", b"a: ", b"(x pid=1) ", b"9", b" "),
    *(b"a", b"a:1:", b"[", b"NCCL INFO ", b"NCCL WARN ", b"comm op: a", b"comm op: ", b" | ", b"-"),
    *(b"\t", b"\x1b[", b"\r", b"\0", b"\xff", b"NET/OFI ", b"via NET/", b"[0]mlx5_0:1/IB ", b"."),
    *(b"ALLOC_CONF=", b"out of memory. Tried to allocate ", b"1.0 GiB ", b"Process 1 has "),
    *(b"atchdog caught collective ", b"Rank 1 Pid 1 on ", b"# ", b"algbw busbw ", b"json = {"),
    *(b'{"a":', b"SamplesPerSec=", b"NCCL error in: ", b"fi_getinfo: provider "),
    *(b"x" * 255 + b":", b"1" * 300 + b":"),
]
OF_NCCL = b"h:1:1 [0] NCCL INFO "
HEADS = [
    *(b"", b"NCCL INFO ", b"comm op: ", b"out of memory. Tried to allocate ", b"[rank1]: atchdog "),
    *(OF_NCCL + b"NET/OFI ", OF_NCCL + b"Plugin ", OF_NCCL + b"NET/IB : Using "),
    OF_NCCL + b"comm 0x1 rank 1 nranks 2 cudaDev 1",
]


@case("log", "expressions")
def _slow_lines(folder: Path, scale: float) -> None:
    """Lines that repeat what an expression repeats: each is as long as lines are read."""
    for number, head in enumerate(HEADS):
        lines = [
            before + head + piece * (count(70_000, min(1, 20 * scale)) // len(piece)) + after
            for piece in PIECES
            for before in (b"", b"NCCL ")
            for after in (b"", b" NCCL INFO x", b"!")
        ]
        (folder / f"lines{number}.log").write_bytes(FIRST + b"\n".join(lines))


@case("log", "one line")
def _long_lines(folder: Path, scale: float) -> None:
    for number, piece in enumerate(PIECES):
        with (folder / f"long{number}.log").open("wb") as out:
            out.writelines(repeated(FIRST, piece, count(10 * MIB, scale) // len(piece)))


# Saved diagnoses

SAVED = to_json(diagnosis())


@case("diagnosis", "values")
def _saved_values(folder: Path, scale: float) -> None:
    """A saved diagnosis with one wrong field: some of all, at random."""
    whole = json.loads(SAVED)
    paths = [path for path, _ in replaced(whole, None)]
    generator = random.Random(7)
    for number in range(count(1200, scale)):
        path, (word, value) = generator.choice(paths), generator.choice(list(VALUES.items()))
        new = next(new for at, new in replaced(whole, value) if at == path)
        (folder / f"{number}_{word}.json").write_bytes(as_json(new))


def _lists(value: Any) -> Iterator[list[Any]]:
    """Yield every list within, except in items that are not the first of theirs."""
    if isinstance(value, list) and value:
        yield value
    if not isinstance(value, (dict, list)):
        return
    for part in value.values() if isinstance(value, dict) else value[:1]:
        yield from _lists(part)


@case("diagnosis", "lengths")
def _saved_lengths(folder: Path, _: float) -> None:
    """One list without an item, or with its items many times."""
    for number in range(len(list(_lists(json.loads(SAVED))))):
        for times in (0, 1, 300):
            whole = json.loads(SAVED)
            changed = list(_lists(whole))[number]
            changed[:] = changed * times or changed[:-1]
            (folder / f"{number}_{times}.json").write_bytes(as_json(whole))


MARKED = b'{"schema_version":1,"findings":['
for word, part in {"objects": b"{},", "deep": b"[", "texts": b'"a",', "digits": b"9"}.items():
    file(
        "diagnosis",
        f"{word}.json",
        lambda s, part=part: repeated(MARKED, part, count(40_000_000, s), b"{}]}"),
    )
file(
    "diagnosis",
    "findings.json",
    lambda s: as_json(
        json.loads(SAVED) | {"findings": json.loads(SAVED)["findings"] * count(20_000, s)}
    ),
)
file(
    "diagnosis",
    "ranks.json",
    lambda s: as_json(
        json.loads(SAVED)
        | {
            "waits": {
                "ranks": list(range(count(1000, s))),
                "steps": list(range(count(2000, s))),
                "exposed_ns": [[1] * count(2000, s)] * count(1000, s),
            }
        }
    ),
)


# Configurations: for `lint`, and for `--config` and `--budget`

CONFIGS: dict[str, Callable[[float], bytes | Iterable[bytes]]] = {
    "deep.json": lambda s: b'{"a":' * 10_000,
    "deep_lists.json": lambda s: b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "commas.json": lambda s: b'{"a":1' + b"," * 500_000 + b"}",
    "quotes.json": lambda s: b'{"a":"' + b'\\"' * 400_000,
    "comments.json": lambda s: b'{"a":1}' + b"/*" * 400_000,
    "slashes.json": lambda s: b'{"a":1}' + b"/" * 900_000,
    "keys.json": lambda s: as_json({f"key{i}": i for i in range(count(60_000, s))}),
    "sections.json": lambda s: as_json(
        {"zero_optimization": {f"stag{i}": i for i in range(count(40_000, s))}}
    ),
    "nested.json": lambda s: as_json(
        {f"s{i}": {f"k{j}": {} for j in range(100)} for i in range(count(800, s))}
    ),
    "twice.json": lambda s: b'{"a":1,"a":2}',
    "digits.json": lambda s: b'{"train_batch_size":' + b"9" * 900_000 + b"}",
    "words.json": lambda s: b'{"a":' + b"x" * 900_000 + b"}",
    "escapes.json": lambda s: b'{"\\u001b[31m\\u202e":"\\ud800"}',
    "nul.json": lambda s: b"{" + b"\0" * 900_000 + b"}",
    "large.json": lambda s: repeated(b"{", b'"a":1,', count(10_000_000, s)),
    "list.json": lambda s: b"[" + b"1," * 400_000 + b"1]",
    "long_list.json": lambda s: b'{"optimizer":{"params":{"betas":[' + b"1," * 400_000 + b"1]}}}",
    "bom.json": lambda s: b"\xff\xfe{\0}\0",
    "aliases.yaml": lambda s: (
        b"a: &a [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(
            b"%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n" % ((98 + i, 98 + i) + (97 + i,) * 9)
            for i in range(20)
        )
    ),
    "merges.yaml": lambda s: b"a: &a {x: 1}\n" + b"b:\n" + b"  <<: *a\n" * 10_000,
    "anchors.yaml": lambda s: b"a: &a 1\n" * 5000 + b"b: &a 2\nc: *zz\n",
    "recursive.yaml": lambda s: b"rules: &a\n  late-rank: *a\nfindings: *a\n",
    "deep.yaml": lambda s: b"rules: " + b"[" * 10_000,
    "deep_maps.yaml": lambda s: b"rules: " + b"{a: " * 10_000,
    "indent.yaml": lambda s: b"".join(b" " * i + b"a:\n" for i in range(700)),
    "dashes.yaml": lambda s: b"- " * 100_000,
    "questions.yaml": lambda s: b"? " * 100_000,
    "large.yaml": lambda s: repeated(b"rules:\n", b"  a: {b: 1}\n", count(4_000_000, s)),
    "keys.yaml": lambda s: b"".join(b"k%d: 1\n" % i for i in range(25_000)),
    "rules.yaml": lambda s: b"rules:\n" + b"".join(b"  k%d: 1\n" % i for i in range(20_000)),
    "tags.yaml": lambda s: b"a: !!python/object/apply:os.system ['touch x']\n",
    "digits.yaml": lambda s: b"every: " + b"9" * 200_000,
    "sexagesimal.yaml": lambda s: b"every: " + b"1:" * 100_000 + b"1",
    "date.yaml": lambda s: b"every: 9999-99-99\nout: 2001-01-01T99:99:99\n",
    "key_of_list.yaml": lambda s: b"[1, 2]: 3\n{a: b}: 4\n? - a\n: b\n",
    "documents.yaml": lambda s: b"--- a\n" * 30_000,
    "directives.yaml": lambda s: b"%YAML 9.9\n%TAG ! x\n--- a\n",
    "nul.yaml": lambda s: b"a: \0\n",
    "text.yaml": lambda s: b'a: "' + b"\\x1b\\u202e" * 20_000,
    "block.yaml": lambda s: b"a: |\n" + b"  x\n" * 60_000,
}
for word, content in CONFIGS.items():
    file("config", word, content)


# Zips

WHOLE = native()


def _zip(path: Path, *members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytearray:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data)
    return bytearray(path.read_bytes())


@case("zip", "names")
def _zip_names(folder: Path, _: float) -> None:
    for number, name in enumerate((
        "/etc/trace.rank00000.json", "../trace.rank00000.json", "a/../../trace.rank00000.json",
        "C:\\trace.rank00000.json", "a\nb\x1b[31mtrace.rank00000.json", "x" * 60_000, "a//b", ".",
        "trace.rank00000.json/", "nul\0trace.rank00000.json",
    )):  # fmt: skip
        _zip(folder / f"name{number}.zip", (name, WHOLE))


@case("zip", "sizes")
def _zip_sizes(folder: Path, _: float) -> None:
    """Sizes, offsets and checksums that are not true."""
    place = {
        "size": 24,
        "packed": 20,
        "crc": 16,
        "offset": 42,
        "method": 10,
        "flags": 8,
        "name": 28,
    }
    for word, offset in place.items():
        for number, value in enumerate((0, 1, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)):
            width = "<H" if word in ("method", "flags") else "<I"
            data = _zip(path := folder / f"{word}{number}.zip", ("trace.rank00000.json", WHOLE))
            entry = data.rindex(b"PK\x01\x02")
            struct.pack_into(width, data, entry + offset, value & (0xFFFF if width == "<H" else -1))
            path.write_bytes(data)


@case("zip", "nested")
def _nested(folder: Path, scale: float) -> None:
    inner = bytes(_zip(folder / "inner.zip", ("trace.rank00000.json", WHOLE)))
    for _ in range(10):
        inner = bytes(_zip(folder / "nested.zip", ("inner.zip", inner)))
    bomb = gzip.compress(gzip.compress(b" " * count(500 * MIB, scale), 9), 9)
    _zip(folder / "gzip.zip", ("trace.rank00000.json.gz", bomb))
    (folder / "trace.rank00000.json.gz").write_bytes(bomb)
    (folder / "trace.rank00001.json.gz").write_bytes(gzip.compress(b"") * count(3_000_000, scale))


@case("zip", "members")
def _members(folder: Path, scale: float) -> None:
    with zipfile.ZipFile(folder / "many.zip", "w") as archive:
        for i in range(count(30_000, scale)):
            archive.writestr(zipfile.ZipInfo(f"trace.rank{i:05d}.json"), WHOLE)
    with zipfile.ZipFile(folder / "same.zip", "w") as archive:
        archive.writestr("trace.rank00000.json", WHOLE)
        first = archive.filelist[0]
        for i in range(count(30_000, scale)):  # entries that lie one over the other
            info = copy.copy(first)
            info.filename = f"trace.rank{i:05d}.json"
            archive.filelist.append(info)


# Folders


@case("folder", "names")
def _names(folder: Path, _: float) -> None:
    write_run(folder, 2)
    for name in (b"a\nb", b"\x1b[31m", b"\xff\xfe", "\u202e\x9b".encode(), b"x" * 250):
        for suffix in (b".json", b".zip", b".log", b".pickle"):
            path = os.fsencode(folder) + b"/trace.rank1" + name[:200] + suffix
            Path(os.fsdecode(path)).write_bytes(FIRST if suffix == b".log" else b"{}")
    _zip(Path(os.fsdecode(os.fsencode(folder) + b"/\xff.zip")), ("\u202e.json", WHOLE))


@case("folder", "kinds")
def _kinds(folder: Path, _: float) -> None:
    """What is no regular file, or no file to be read."""
    write_run(folder, 2)
    os.mkfifo(folder / "trace.rank00002.json")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(folder, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{here}/trace.rank00003.json")
        os.close(here)
    for number, target in enumerate((
        "trace.rank00100.json", "nowhere", "/dev/zero", "/dev/full", "/proc/self/mem", "/proc/kmsg",
        "/sys/kernel/mm", ".", "..", "/", "/dev/stdin", "/proc/self/fd/0", "trace.rank00002.json",
    ), 100):  # fmt: skip
        (folder / f"trace.rank{number:05d}.json").symlink_to(target)
    (folder / "trace.rank00004.json").mkdir()
    (folder / "trace.rank00005.json").write_bytes(WHOLE)
    (folder / "trace.rank00005.json").chmod(0)
    (folder / "loop_a").symlink_to("loop_b")
    (folder / "loop_b").symlink_to("loop_a")


@case("folder", "many")
def _many_files(folder: Path, scale: float) -> None:
    write_run(folder, 2)
    for i in range(count(100_000, scale)):
        (folder / f"x{i}").touch()


@case("folder", "ranks")
def _many_ranks(folder: Path, scale: float) -> None:
    """Many ranks of which each is a header alone, and as many copies."""
    for i in range(count(3000, scale)):
        head = msgspec.json.encode(HEADER).replace(b'"rank":0', b'"rank":%d' % i)
        head = head.replace(b'"world_size":1', b'"world_size":1048576')
        for name in ("trace", "trace.copy"):
            (folder / f"{name}.rank{i:05d}.json").write_bytes(b"[\n" + head)
