"""Native traces."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from dsprof.trace.lines import LINES
from tests.factories import trace as make
from tests.factories.bombs.cases import (
    FULL_SCALE,
    MIB,
    VALUES,
    as_json,
    case,
    count,
    file,
    packed,
    repeated,
    replaced,
)
from tests.factories.trace_files import run_events


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
            if len(word) < 5 or scale == FULL_SCALE:
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
