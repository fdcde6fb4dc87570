"""Torch's execution traces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from tests.factories import exports
from tests.factories.bombs.cases import VALUES, as_json, count, file, packed, repeated, replaced

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
