"""Chakra graphs, encoded by hand from the field numbers of `et_def.proto`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

COLLECTIVES = (
    "ALL_REDUCE",
    "REDUCE",
    "ALL_GATHER",
    "GATHER",
    "SCATTER",
    "BROADCAST",
    "ALL_TO_ALL",
    "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK",
    "BARRIER",
)
COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def sized(field: int, content: bytes | str) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(content)) + content


def framed(message: bytes) -> bytes:
    return varint(len(message)) + message


def attribute(name: str, value: bool | int | str | Sequence[bool]) -> bytes:
    """An attribute; whole numbers are signed ones of 64 bits, as converters write them."""
    match value:
        case bool():
            told = number(27, value)
        case int():
            told = number(9, value)
        case str():
            told = sized(29, value)
        case _:
            told = sized(28, sized(1, bytes(value)))
    return sized(1, name) + told


def metadata(version: str = "", place: int = 2, **attributes: Any) -> bytes:
    """Metadata of which attributes stand at `place`; that was 1 before it had a version."""
    told = [sized(place, attribute(*one)) for one in attributes.items()]
    return framed((sized(1, version) if version else b"") + b"".join(told))


def node(number_: int, name: str, kind: int, inputs: str = "", **attributes: Any) -> bytes:
    """A node with all that a converter writes of one."""
    told = [number(1, number_)] if number_ else []  # a zero is not written
    told += [sized(2, name), number(3, kind), sized(4, varint(0)), number(7, 12)]
    told += [sized(8, sized(1, inputs) + sized(3, "['Tensor(float)']")), sized(9, b"")]
    told += [sized(10, attribute(*one)) for one in attributes.items()]
    return framed(b"".join(told))


def collective(op: str, nbytes: int, **attributes: Any) -> bytes:
    kind = COLLECTIVES.index(op)
    return node(7, op, COLLECTIVE, is_cpu_op=False, comm_type=kind, comm_size=nbytes, **attributes)


def groups(*sizes: int) -> bytes:
    """The node that lists the process groups, as Python prints a list of one text."""
    told = [
        {"pg_name": str(i), "pg_desc": "default_pg" if not i else "tensor", "ranks": []}
        | {"backend_config": "cuda:nccl", "group_size": size}
        for i, size in enumerate(sizes)
    ]
    return node(2, "## process_group:init ##", 1, inputs=str([json.dumps(told)]))


CONVERTED = metadata(schema="1.1.1-chakra.0.0.4", pid=77, time="2024-03-21 18:54:23")
"""What the converter writes first."""
