"""Chakra graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.factories import chakra
from tests.factories.bombs.cases import count, file, packed, repeated

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
