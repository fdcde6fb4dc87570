"""What rules show of the caching allocator: its counters at step ends, and its settings."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.memory import UNKNOWN, Memory, RankMemory
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.rank.steps import warmup_steps
from dsprof.analysis.rank_sets import RankSet
from dsprof.trace.columns import BoolArray, IntArray
from dsprof.trace.device_counters import DEVICE_TOTAL, PEAK_RESERVED, RETRIES

_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")

EXPANDABLE = "expandable_segments:True"
EXPAND = f"PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}"
"""The variable and value by which segments grow (PyTorch 2.1 or later; not in most ROCm builds)."""
SPLIT_LESS = "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128"
"""What keeps large segments whole where they cannot grow."""


class Series(NamedTuple):
    """A value at the ends of steps after warm-up, of which some may not be recorded."""

    step: IntArray
    value: IntArray


def host_series(memory: RankMemory) -> Series:
    """Return resident bytes of a process."""
    resident = memory.at_steps.rss_bytes
    return _after_warmup(memory, resident, resident > 0)


def device_series(memory: RankMemory, counter: str) -> Series:
    """Return a counter of the device."""
    values = memory.at_steps.counters.get(counter)
    if values is None:
        values = np.full(len(memory.at_steps.step), UNKNOWN)
    return _after_warmup(memory, values, values != UNKNOWN)


def retries(memory: RankMemory) -> int:
    """Return how often allocations were tried again after the first recorded step."""
    return memory.device_last.get(RETRIES, 0) - memory.device_first.get(RETRIES, 0)


def is_short(memory: Memory) -> bool:
    """Say whether any rank had to try allocations again: there was no room."""
    return any(map(retries, memory.ranks.values()))


def has_room(memory: Memory, run: Run, nbytes: float) -> bool:
    """Say whether each rank is known to have room for so many bytes, twice.

    That is what its device never reserved; on CPUs its share of what its host had left. Ranks
    without a trace would take a share of it, too.
    """
    if run.missing_ranks or memory.ranks.keys() != run.hosts.keys():
        return False
    ranks_on = Counter(run.hosts.values())
    if run.is_cpu:
        rooms = [
            (one.least_host_available_bytes or 0) / ranks_on[run.hosts[rank]]
            for rank, one in memory.ranks.items()
        ]
    else:
        most = [one.device_max for one in memory.ranks.values()]
        is_known = all(PEAK_RESERVED in one for one in most)
        rooms = [one.get(DEVICE_TOTAL, 0) - one[PEAK_RESERVED] for one in most] if is_known else []
    return not is_short(memory) and min(rooms, default=0) >= 2 * nbytes


def against_fragments(environment: EnvironmentFacts) -> str:
    """Return the variable and value to set."""
    return SPLIT_LESS if environment.versions.get("hip") else EXPAND


def is_expandable(setting: str) -> bool:
    """Say whether a value of the allocator's variable lets segments grow; torch ignores spaces."""
    return "expandable_segments:true" in setting.lower().replace(" ", "")


def expandable_ranks(environment: EnvironmentFacts) -> RankSet:
    """Return the ranks on which segments of the allocator can grow already."""
    ranks = 0
    for name in _ALLOCATOR_VARIABLES:
        for value, holders in environment.variables.get(name, {}).items():
            if is_expandable(value):
                ranks |= holders
    return ranks


def _after_warmup(memory: RankMemory, values: IntArray, is_known: BoolArray) -> Series:
    rows = np.flatnonzero(is_known)
    rows = rows[warmup_steps(len(rows)) :]
    return Series(memory.at_steps.step[rows], values[rows])
