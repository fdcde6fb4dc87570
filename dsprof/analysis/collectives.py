"""Families of collectives, and the factors between their speed and the speed of the links."""

from __future__ import annotations

_FAMILIES = {
    "allreduce": "all_reduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "monitoredbarrier": "barrier",
    "isend": "send",
    "send": "send",
    "irecv": "recv",
    "recv": "recv",
}

SYNCHRONISING = frozenset({"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier"})
"""No rank leaves one of these before every rank has entered it."""

POINT_TO_POINT = frozenset({"send", "recv"})

REDUCTIONS = frozenset({"all_reduce", "reduce_scatter", "reduce"})


def family(op: str) -> str:
    """Return the collective that `op` is a spelling of, or `op` itself if it is none.

    `all_gather_into_tensor`, `_allgather_base_` and `all_gather_single` are all `all_gather`.
    """
    bare = op.replace("_", "").lower()
    for start, name in _FAMILIES.items():
        if bare.startswith(start):
            return name
    return op


_EVEN = (
    *("allreduce", "broadcast", "reduceoop"),
    *("allgatherinto", "allgatherbase", "allgathersingle"),
    *("reducescattertensor", "reducescatterbase", "reducescattersingle"),
)


def is_even(op: str) -> bool:
    """Say whether every rank must give and take as much as the others."""
    bare = op.replace("_", "").lower()
    return bare == "reduce" or bare.startswith(_EVEN)


def busbw_factor(op: str, group_size: int) -> float | None:
    """Return bus bandwidth / algorithm bandwidth of a collective; None where it has none.

    Source: NVIDIA nccl-tests, doc/PERFORMANCE.md. `group_size` is the size of the process group,
    not of the world.
    """
    if group_size < 1:
        return None
    share = (group_size - 1) / group_size
    match family(op):
        case "all_reduce":
            return 2 * share
        case "reduce_scatter" | "all_gather" | "all_to_all" | "gather" | "scatter":
            return share
        case "broadcast" | "reduce" | "send" | "recv":
            return 1.0
        case _:
            return None


_MIB = 1 << 20
_SIZE_CLASSES = (
    (4 << 10, "< 4 KiB"),
    (64 << 10, "4-64 KiB"),
    (_MIB, "64 KiB-1 MiB"),
    (4 * _MIB, "1-4 MiB"),
    (16 * _MIB, "4-16 MiB"),
    (64 * _MIB, "16-64 MiB"),
    (256 * _MIB, "64-256 MiB"),
)

SIZE_EDGES_BYTES = tuple(edge for edge, _ in _SIZE_CLASSES)
SIZE_CLASSES = (*(name for _, name in _SIZE_CLASSES), ">= 256 MiB")
"""`SIZE_CLASSES[np.searchsorted(SIZE_EDGES_BYTES, nbytes, "right")]` names the class of a size."""
SIZE_NOT_KNOWN = "not known"
"""The class of sizes that the record does not hold."""
