"""ZeRO-3's settings for what it gathers, and which gathers they are about."""

from __future__ import annotations

from dsprof.analysis.aggregates.communication import Kind, Row
from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.collectives import SIZE_CLASSES, family

PERSISTENCE = "stage3_param_persistence_threshold"
PERSISTENCE_DEFAULT = 100_000
PREFETCH = "stage3_prefetch_bucket_size"
PREFETCH_DEFAULT = 50_000_000

_SMALL = frozenset(SIZE_CLASSES[:3])
"""Below a megabyte latency rules on every common link."""


def small_gathers(rows: dict[Kind, Row], phases: tuple[str, ...]) -> dict[Kind, Row]:
    """Return the gathers of less than a megabyte in `phases`, in groups of two or more."""
    return {
        kind: row
        for kind, row in rows.items()
        if family(kind.op) == "all_gather"
        and kind.phase in phases
        and kind.group_size > 1
        and kind.size_class in _SMALL
    }


def written_number(engines: Engines, key: str) -> float | None:
    """Return what the user wrote for a key of zero_optimization; None if that is no number."""
    value = engines.written_zero(key)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
