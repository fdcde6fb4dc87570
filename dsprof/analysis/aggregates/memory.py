"""Memory of the host, of /dev/shm and of the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dsprof.analysis.rank.buffer_levels import gathered_by_step, reducing_by_step
from dsprof.analysis.rank.sampling import sample, share_of
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import MemorySample

SAMPLES = 1 << 18
"""Samples kept of all ranks together. Beyond, each rank keeps the same ones."""
_LEAST_SAMPLES, _MOST_SAMPLES = 64, 1 << 12  # of a rank


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
    at_steps: tuple[MemorySample, ...]
    gathered_bytes: dict[int, int]  # by step, of those of `at_steps`: the most at once
    reducing_bytes: dict[int, int]  # of gradient buckets in flight, the same


@dataclass(frozen=True, slots=True)
class Memory(Aggregate):
    """Memory by rank, of the ranks that wrote a sample."""

    ranks: dict[int, RankMemory]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Memory:
        """Read the samples of one rank."""
        samples = sorted(trace.memory, key=lambda sample: sample.time_ns)
        if not samples:
            return cls({})
        at_steps = [sample for sample in samples if sample.at == "step"]
        on_device = [one.device for one in at_steps if one.device]
        device_max: dict[str, int] = {}
        for one in samples:
            for name, value in (one.device or {}).items():
                device_max[name] = max(value, device_max.get(name, value))
        rss = _known(sample.rss_bytes for sample in samples)
        peaks = _known(sample.peak_rss_bytes for sample in samples)
        kept = _kept(trace, at_steps)
        steps = np.unique(np.fromiter((one.step for one in kept), np.int64))
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
            at_steps=kept,
            gathered_bytes={
                step: held.nbytes for step, held in gathered_by_step(trace, steps).items()
            },
            reducing_bytes=reducing_by_step(trace, steps),
        )
        return cls({trace.rank: memory})


def _kept(trace: RankTrace, samples: Sequence[MemorySample]) -> tuple[MemorySample, ...]:
    """Return a sample of what the rank wrote at the ends of steps."""
    numbers = np.fromiter((one.step for one in samples), np.int64)
    most = share_of(trace, SAMPLES, _LEAST_SAMPLES, _MOST_SAMPLES)
    return tuple(samples[place] for place in sample(numbers, np.arange(len(samples)), most)[0])


def _known(values: Iterable[int]) -> list[int]:
    return [value for value in values if value >= 0]


AGGREGATE = Memory
