"""Classes of sizes, and the factors between the speed of collectives and that of the links."""

from __future__ import annotations

from dsprof.trace.collectives import family


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
