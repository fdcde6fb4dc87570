"""Which kernels of an accelerator communicate, by their names.

The name is the second witness: a kernel that the profiler itself gave the name of a collective
communicates whatever it is called. `communication_kernels.csv` holds the families; its first line
that matches names the library.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

from dsprof.files.tables import rows

_NAMES_KEPT = 1 << 12  # the ranks of a run launch the same kernels

_OPERATIONS = (
    ("all_reduce", "all_?reduce"),
    ("reduce_scatter", "reduce_?scatter"),
    ("all_gather", "all_?gather"),
    ("all_to_all", "all_?to_?all"),
    ("send_recv", "send_?recv"),
    ("broadcast", "broadcast"),
    ("dispatch", "dispatch"),
    ("combine", "combine"),
    ("all_reduce", "cross_device_reduce|quick_?reduce"),
    ("reduce", "reduce"),
)


@lru_cache(_NAMES_KEPT)
def library_of(kernel: str) -> str:
    """Return the communication library that a kernel belongs to, "" if it is in no family."""
    for library, pattern in _families():
        if pattern.search(kernel):
            return library
    return ""


def is_usual(kernel: str) -> bool:
    """Say whether a kernel communicates by the common test, "nccl" or "rccl" in its name."""
    lowered = kernel.lower()
    return "nccl" in lowered or "rccl" in lowered


def operation_of(kernel: str) -> str:
    """Return the collective that the name of a communication kernel tells, "" if it tells none.

    RCCL and recent NCCL run several collectives by one kernel, whose name says nothing.
    """
    base = kernel.replace("(anonymous namespace)", "").split("(", 1)[0]
    return next((name for name, pattern in _OPERATIONS if re.search(pattern, base, re.I)), "")


@cache
def _families() -> tuple[tuple[str, re.Pattern[str]], ...]:
    known = rows("trace/readers/communication_kernels.csv")
    return tuple((row["library"], re.compile(row["pattern"], re.I)) for row in known)
