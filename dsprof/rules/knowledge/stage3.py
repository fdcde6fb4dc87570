"""ZeRO-3's settings for what it all-gathers, and which all-gathers they are about."""

from __future__ import annotations

from dsprof.analysis.aggregates.communication import Kind, Row
from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.fetches import Fetches
from dsprof.analysis.collectives import SIZE_CLASSES
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Range
from dsprof.rules.evidence.calls import Calls, blocked_ms, bytes_per_step, calls_per_step
from dsprof.rules.savings import joining_saves, ns_per_byte
from dsprof.trace.collectives import family

PERSISTENCE = "stage3_param_persistence_threshold"
PERSISTENCE_DEFAULT = 100_000
PREFETCH = "stage3_prefetch_bucket_size"
PREFETCH_DEFAULT = 50_000_000
MAX_LIVE = "stage3_max_live_parameters"
MAX_LIVE_DEFAULT = 1_000_000_000
REUSE = "stage3_max_reuse_distance"
REUSE_DEFAULT = 1_000_000_000

LEAF_MODULES = (
    "If ranks may run different modules, as with experts or branches on data, mark the module "
    "that contains them as a leaf: ZeRO-3 then all-gathers and reduces it whole on every rank. Use "
    "zero_optimization.leaf_module, or deepspeed.utils.set_z3_leaf_modules(model, [Block])."
)

_SMALL = frozenset(SIZE_CLASSES[:3])
"""Below a megabyte latency rules on every common link."""


def small_gathers(rows: dict[Kind, Row], phases: tuple[str, ...]) -> dict[Kind, Row]:
    """Return the all-gathers of less than a megabyte in `phases`, in groups of two or more."""
    return {
        kind: row
        for kind, row in rows.items()
        if family(kind.op) == "all_gather"
        and kind.phase in phases
        and kind.group_size > 1
        and kind.size_class in _SMALL
    }


def joining_saves_of(run: RunSummary, gathers: Calls, share: float) -> Range | None:
    """Return what it saves if `share` of the all-gathers joins others: their latencies, in ms."""
    cost_ms = blocked_ms(gathers)
    if cost_ms is None:
        return None
    size, calls = max(kind.group_size for kind in gathers), calls_per_step(gathers)
    slope = ns_per_byte(run, "all_gather", size)
    return joining_saves(cost_ms, calls, bytes_per_step(gathers), calls * (1 - share), slope)


def two_fetches(fetches: Fetches) -> int:
    """Return the elements of two mean fetches, at most DeepSpeed's default of a prefetch."""
    sums = [s for kind, s in fetches.rows.items() if kind.kind == "fetch"]
    elements, calls = sum(s.elements for s in sums), sum(s.calls for s in sums)
    return min(2 * elements // calls, PREFETCH_DEFAULT) if elements else PREFETCH_DEFAULT


def low_max_live(engines: Engines, fetches: Fetches) -> int | None:
    """Return what the user wrote for MAX_LIVE where it leaves no room to gather ahead.

    ZeRO-3 prefetches while fewer parameters than that are gathered: it has to hold what is in use
    and what comes next.
    """
    written = written_number(engines, MAX_LIVE)
    return int(written) if written is not None and written < two_fetches(fetches) else None


def written_number(engines: Engines, key: str) -> float | None:
    """Return what the user wrote for a key of zero_optimization; None if that is no number."""
    value = engines.written_zero(key)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
