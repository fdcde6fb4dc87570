from __future__ import annotations

from dsprof.analysis.aggregates.memory import Memory
from dsprof.trace.schema import MemorySample
from tests.factories.trace import rank_trace, summary


def test_extremes_are_over_all_samples_and_columns_over_step_ends():
    samples = [
        MemorySample("step", 2, step=1, rss_bytes=70, shm_free_bytes=5, device={"a": 3}),
        MemorySample("step", 1, step=0, rss_bytes=50, shm_free_bytes=9, device={"a": 8}),
        MemorySample("writer", 3, rss_bytes=60, peak_rss_bytes=95, host_available_bytes=7),
    ]
    memory = summary(rank_trace(memory=samples))[Memory].ranks[0]
    assert (memory.peak_rss_bytes, memory.last_rss_bytes) == (95, 60)
    assert (memory.least_shm_free_bytes, memory.least_host_available_bytes) == (5, 7)
    assert memory.device_max == {"a": 8}
    assert (memory.device_first, memory.device_last) == ({"a": 8}, {"a": 3})
    assert [sample.step for sample in memory.at_steps] == [0, 1]


def test_what_could_not_be_read_is_none():
    memory = summary(rank_trace(memory=[MemorySample("step", 1)]))[Memory].ranks[0]
    assert memory.peak_rss_bytes is None
    assert memory.host_total_bytes is None
    assert memory.device_last == {}


def test_a_rank_without_samples_has_no_row():
    assert summary(rank_trace())[Memory].ranks == {}
