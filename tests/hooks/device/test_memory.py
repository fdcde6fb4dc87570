from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest
import torch

from dsprof.hooks.device.memory import (
    DeviceMemoryHook,
    MemorySampler,
    device_counters,
)
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.device_counters import DEVICE_TOTAL
from dsprof.trace.schema import MemorySample
from tests.handed_over import handed_over


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(
        is_initialized=lambda: True,
        memory_stats_as_nested_dict=lambda device: {
            "num_ooms": 3,
            "allocated_bytes": {"all": {"current": 7, "freed": 1}, "small_pool": {"current": 2}},
            "active_bytes": {"all": {}},
            "of no interest": 1,
        },
        current_device=lambda: 2,
        get_device_properties=lambda device: SimpleNamespace(total_memory=device * 10**10),
    )
    monkeypatch.setattr(torch, "cuda", made)
    return made


def test_counters_come_with_the_size_of_the_current_device(cuda: SimpleNamespace) -> None:
    assert device_counters() == {
        "num_ooms": 3,
        "allocated_bytes.all.current": 7,
        DEVICE_TOTAL: 2 * 10**10,
    }


def test_nothing_is_read_before_cuda_is_in_use(cuda: SimpleNamespace) -> None:
    recorder = Recorder(lambda: True)
    hook = DeviceMemoryHook(recorder)
    cuda.is_initialized = lambda: False
    hook.sample_step(1)
    assert not handed_over(recorder)
    cuda.is_initialized = lambda: True
    hook.sample_step(2)
    (sample,) = handed_over(recorder)
    assert isinstance(sample, MemorySample)
    assert (sample.step, sample.device) == (2, device_counters())
    assert not recorder.failures


def test_the_process_and_the_host_are_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    left, own = iter([300, 200]), iter([1, 2])
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: SimpleNamespace(available=next(left), total=400)
    )
    monkeypatch.setattr(
        psutil.Process, "memory_info", lambda process: SimpleNamespace(rss=next(own))
    )
    sampler = MemorySampler()
    samples = [sampler.sample("step", step) for step in range(2)]
    assert [(one.rss_bytes, one.host_available_bytes) for one in samples] == [(1, 300), (2, 200)]
    assert {one.host_total_bytes for one in samples} == {400}
    assert all(one.shm_total_bytes > 0 for one in samples)


def test_a_process_that_has_used_up_its_files_is_still_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*args: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(psutil, "virtual_memory", fails)
    monkeypatch.setattr(psutil.Process, "memory_info", fails)
    sample = MemorySampler().sample("step", 1)
    assert (sample.rss_bytes, sample.host_available_bytes) == (-1, -1)
    assert sample.peak_rss_bytes > 0
