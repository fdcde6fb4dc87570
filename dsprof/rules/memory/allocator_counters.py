"""Common parts of rules of memory: series of step ends, settings of the allocator, words."""

from __future__ import annotations

from collections.abc import Sequence

from dsprof.analysis.aggregates.environment import EnvironmentFacts, RankSet
from dsprof.analysis.aggregates.memory import UNKNOWN, Memory, RankMemory
from dsprof.analysis.rank.steps import warmup_steps
from dsprof.trace.device_counters import RETRIES

_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def host_series(memory: RankMemory) -> list[int]:
    """Return resident bytes of a process at the ends of steps after warm-up."""
    return _after_warmup([rss for rss in memory.at_steps.rss_bytes.tolist() if rss > 0])


def device_series(memory: RankMemory, counter: str) -> list[int]:
    """Return a counter of the device at the ends of steps after warm-up."""
    column = memory.at_steps.counters.get(counter)
    values = [] if column is None else column.tolist()
    return _after_warmup([value for value in values if value != UNKNOWN])


def retries(memory: RankMemory) -> int:
    """Return how often allocations were tried again after the first recorded step."""
    return memory.device_last.get(RETRIES, 0) - memory.device_first.get(RETRIES, 0)


def is_short(memory: Memory) -> bool:
    """Say whether any rank had to try allocations again: there was no room."""
    return any(map(retries, memory.ranks.values()))


def expandable_ranks(environment: EnvironmentFacts) -> RankSet:
    """Return the ranks on which segments of the allocator can grow already."""
    ranks = 0
    for name in _ALLOCATOR_VARIABLES:
        for value, holders in environment.variables.get(name, {}).items():
            if "expandable_segments:true" in value.lower().replace(" ", ""):
                ranks |= holders
    return ranks


def _after_warmup(values: Sequence[int]) -> list[int]:
    return list(values[warmup_steps(len(values)) :])
