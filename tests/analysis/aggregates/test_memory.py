from __future__ import annotations

from dsprof.analysis.aggregates.memory import UNKNOWN, Memory
from dsprof.trace.device_counters import ALLOCATED
from dsprof.trace.schema import MemorySample
from tests.factories.trace import issued, rank_trace, summary


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
    assert memory.at_steps.step.tolist() == [0, 1]
    assert memory.at_steps.rss_bytes.tolist() == [50, 70]


def test_counters_of_the_device_are_unknown_where_a_sample_lacks_them():
    counted = [{ALLOCATED: 8}, None, {ALLOCATED: 0, "another": 5}]
    samples = [MemorySample("step", n, step=n, device=one) for n, one in enumerate(counted)]
    columns = summary(rank_trace(memory=samples))[Memory].ranks[0].at_steps.counters
    assert {name: column.tolist() for name, column in columns.items()} == {
        ALLOCATED: [8, UNKNOWN, 0]
    }


def test_what_could_not_be_read_is_none():
    memory = summary(rank_trace(memory=[MemorySample("step", 1)]))[Memory].ranks[0]
    assert memory.peak_rss_bytes is None
    assert memory.host_total_bytes is None
    assert memory.device_last == {}


def test_a_rank_without_samples_has_no_row():
    assert summary(rank_trace())[Memory].ranks == {}


def test_buffers_are_the_most_at_once_in_each_sampled_step():
    comm = [
        issued("all_reduce", 0, 10, step=0, flush=1, nbytes=4 << 20),
        issued("all_reduce", 5, 15, step=0, flush=2, nbytes=2 << 20),
        issued("all_reduce", 20, 30, step=0, flush=3, nbytes=5 << 20),
        issued("all_reduce", 101, 110, step=1, flush=4, nbytes=1 << 20),
        issued("all_gather", 102, 110, step=1, fetch=5, nbytes=3 << 20),
        issued("all_reduce", 201, 210, step=2, flush=6),
    ]
    samples = [MemorySample("step", at, step=step) for step, at in ((0, 1), (1, 2))]
    memory = summary(rank_trace(memory=samples, comm=comm))[Memory].ranks[0]
    assert memory.at_steps.reducing_bytes.tolist() == [6 << 20, 1 << 20]
    assert memory.at_steps.gathered_bytes.tolist() == [UNKNOWN, 3 << 20]
