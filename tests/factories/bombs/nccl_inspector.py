"""Logs of NCCL Inspector."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from tests.factories import exports
from tests.factories.bombs.cases import VALUES, as_json, count, file, packed, repeated, replaced

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
