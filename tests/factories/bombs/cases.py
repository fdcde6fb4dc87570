"""The registry of the cases, and what many of them use."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

Maker = Callable[[Path, float], None]
CASES: dict[str, dict[str, Maker]] = {}
"""Class -> name -> what writes the case."""

MIB = 1 << 20
FULL_SCALE = 1.0
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
"""Wrong values for a field."""


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
