from __future__ import annotations

import resource
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from dsprof.hooks.device.memory import (
    DeviceMemoryHook,
    device_counters,
    sample_memory,
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


def test_the_process_and_the_host_are_read_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsprof.hooks.device.memory._PROC", tmp_path)
    (tmp_path / "self").mkdir()
    for number in (1, 2):
        (tmp_path / "self/statm").write_text(f"90 {number} 7 1 0 50 0\n")
        (tmp_path / "meminfo").write_text(
            f"MemTotal:  400 kB\nMemAvailable:  {number} kB\nHugePages_Total:  0\n"
        )
        sample = sample_memory("step", number)
        assert sample.rss_bytes == number * resource.getpagesize()
        assert (sample.host_available_bytes, sample.host_total_bytes) == (number * 1024, 409_600)


def test_memory_is_what_psutil_says() -> None:
    sample, process, host = sample_memory("step", 1), psutil.Process(), psutil.virtual_memory()
    assert sample.host_total_bytes == host.total
    assert sample.host_available_bytes == pytest.approx(host.available, rel=0.5)
    assert sample.rss_bytes == pytest.approx(process.memory_info().rss, rel=0.1)
    assert sample.shm_total_bytes > 0


@pytest.mark.parametrize("meminfo", [None, "", "MemTotal:\n", "MemTotal:  many kB\n"])
def test_a_host_that_says_no_sizes_is_still_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meminfo: str | None
) -> None:
    monkeypatch.setattr("dsprof.hooks.device.memory._PROC", tmp_path)
    (tmp_path / "self").mkdir()
    (tmp_path / "self/statm").write_text("90 80 7 1 0 50 0\n")
    if meminfo is not None:
        (tmp_path / "meminfo").write_text(meminfo)
    sample = sample_memory("step", 1)
    assert (sample.host_available_bytes, sample.host_total_bytes) == (-1, -1)
    assert min(sample.rss_bytes, sample.peak_rss_bytes) > 0


def test_a_process_that_has_used_up_its_files_is_still_sampled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(path: Path) -> str:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Path, "read_text", fails)
    sample = sample_memory("step", 1)
    assert (sample.rss_bytes, sample.host_available_bytes) == (-1, -1)
    assert sample.peak_rss_bytes > 0
