"""Memory of the host, of /dev/shm and of the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsprof.analysis.per_rank import PerRank
from dsprof.analysis.rank.buffer_levels import gathered_by_step, reducing_by_step
from dsprof.analysis.rank.sampling import sample, share_of
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.columns import IntArray
from dsprof.trace.device_counters import ALLOCATED, FREED, RESERVED, RETRIES, STUCK
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import MemorySample
from dsprof.trace.sharing import shared

SAMPLES = 1 << 18
"""Samples kept of all ranks together. Beyond, each rank keeps the same ones."""
_LEAST_SAMPLES, _MOST_SAMPLES = 64, 1 << 12  # of a rank


COUNTERS = (ALLOCATED, RESERVED, STUCK, FREED, RETRIES)
"""Counters of a device that are kept for each step."""
UNKNOWN = int(np.iinfo(np.int64).min)


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Columns, one row per sample at the end of a step; UNKNOWN where the trace has no value."""

    step: IntArray
    rss_bytes: IntArray  # -1 where it could not be read
    counters: dict[str, IntArray]  # those of COUNTERS that any sample has
    gathered_bytes: IntArray  # the most at once in the step
    reducing_bytes: IntArray  # of gradient buckets in flight, the same


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Extremes and step ends of one rank; None where nothing could be read."""

    peak_rss_bytes: int | None
    last_rss_bytes: int | None
    host_total_bytes: int | None
    least_host_available_bytes: int | None
    shm_total_bytes: int | None
    least_shm_free_bytes: int | None
    device_max: dict[str, int]  # largest value of each counter
    device_first: dict[str, int]  # values at the end of the first recorded step
    device_last: dict[str, int]
    at_steps: StepMemory


@dataclass(frozen=True, slots=True)
class Memory(Aggregate):
    """Memory by rank, of the ranks that wrote a sample."""

    ranks: PerRank[RankMemory]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Memory:
        samples = sorted(trace.memory, key=lambda sample: sample.time_ns)
        if not samples:
            return cls(PerRank())
        at_steps = [sample for sample in samples if sample.at == "step"]
        on_device = [one.device for one in at_steps if one.device]
        device_max: dict[str, int] = {}
        for one in samples:
            for name, value in (one.device or {}).items():
                device_max[name] = max(value, device_max.get(name, value))
        rss = _known(sample.rss_bytes for sample in samples)
        peaks = _known(sample.peak_rss_bytes for sample in samples)
        memory = RankMemory(
            peak_rss_bytes=max(peaks + rss, default=None),
            last_rss_bytes=rss[-1] if rss else None,
            host_total_bytes=max(_known(s.host_total_bytes for s in samples), default=None),
            least_host_available_bytes=min(
                _known(s.host_available_bytes for s in samples), default=None
            ),
            shm_total_bytes=max(_known(s.shm_total_bytes for s in samples), default=None),
            least_shm_free_bytes=min(_known(s.shm_free_bytes for s in samples), default=None),
            device_max=device_max,
            device_first=on_device[0] if on_device else {},
            device_last=on_device[-1] if on_device else {},
            at_steps=_at_steps(trace, _kept(trace, at_steps)),
        )
        return cls(PerRank({trace.rank: memory}))


def _at_steps(trace: RankTrace, samples: Sequence[MemorySample]) -> StepMemory:
    """Return what a rank's samples say, as columns: objects would take ten times the memory."""
    step = np.fromiter((one.step for one in samples), np.int64, len(samples))
    rss_bytes = np.fromiter((one.rss_bytes for one in samples), np.int64, len(samples))
    values = {name: [(one.device or {}).get(name, UNKNOWN) for one in samples] for name in COUNTERS}
    counters = {name: np.array(column, np.int64) for name, column in values.items()}
    numbers = np.unique(step)
    gathered = {number: held.nbytes for number, held in gathered_by_step(trace, numbers).items()}
    reducing = reducing_by_step(trace, numbers)
    return StepMemory(
        shared(step),
        rss_bytes,
        {name: column for name, column in counters.items() if (column != UNKNOWN).any()},
        shared(_of_steps(step, gathered)),
        shared(_of_steps(step, reducing)),
    )


def _of_steps(step: IntArray, held: Mapping[int, int]) -> IntArray:
    return np.array([held.get(number, UNKNOWN) for number in step.tolist()], np.int64)


def _kept(trace: RankTrace, samples: Sequence[MemorySample]) -> tuple[MemorySample, ...]:
    """Return a sample of what the rank wrote at the ends of steps."""
    numbers = np.fromiter((one.step for one in samples), np.int64)
    most = share_of(trace, SAMPLES, _LEAST_SAMPLES, _MOST_SAMPLES)
    return tuple(samples[place] for place in sample(numbers, np.arange(len(samples)), most)[0])


def _known(values: Iterable[int]) -> list[int]:
    return [value for value in values if value >= 0]
