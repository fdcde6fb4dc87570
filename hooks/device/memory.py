"""Memory: of the host from the writer's thread, of the device at step ends and bucket flushes."""

from __future__ import annotations

import contextlib
import os
import resource
from typing import Any

import torch

from dsprof.hooks.base import Hook
from dsprof.trace.device_counters import (
    ALLOCATED,
    DEVICE_TOTAL,
    FREED,
    PEAK_ALLOCATED,
    PEAK_RESERVED,
    RESERVED,
    RETRIES,
    STUCK,
)
from dsprof.trace.schema import MemorySample
from dsprof.trace.scope import clock

_DEVICE_COUNTERS = (
    ALLOCATED,
    PEAK_ALLOCATED,
    RESERVED,
    PEAK_RESERVED,
    "active_bytes.all.current",
    STUCK,
    "requested_bytes.all.current",
    RETRIES,
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    FREED,
)


class MemorySampler:
    """Reads the memory of this process and its host; what cannot be read stays -1."""

    def __init__(self) -> None:
        self._process: Any = None

    def sample(self, at: str, step: int) -> MemorySample:
        """Return a sample of now; for the writer's thread."""
        found = MemorySample(at, clock(), step)
        found.peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        with contextlib.suppress(ImportError, OSError):  # a process may have no file left
            import psutil

            # Making one reads more of /proc than asking it.
            self._process = self._process or psutil.Process()
            found.rss_bytes = self._process.memory_info().rss
            memory = psutil.virtual_memory()
            found.host_available_bytes, found.host_total_bytes = memory.available, memory.total
        with contextlib.suppress(OSError):
            shm = os.statvfs("/dev/shm")
            found.shm_free_bytes = shm.f_bavail * shm.f_frsize
            found.shm_total_bytes = shm.f_blocks * shm.f_frsize
        return found


_KEYS = [(name, *name.split(".")) for name in _DEVICE_COUNTERS]


def device_counters() -> dict[str, int]:
    """Return the allocator's counters of the current device, which must be in use."""
    device = torch.cuda.current_device()
    # memory_stats flattens hundreds for these few
    counters = torch.cuda.memory_stats_as_nested_dict(device)
    found = {}
    for name, first, *others in _KEYS:
        value = counters.get(first, {})
        for key in others:
            value = value.get(key, {})
        if isinstance(value, int):
            found[name] = value
    # Properties are read from the driver once, and kept by torch.
    found[DEVICE_TOTAL] = int(torch.cuda.get_device_properties(device).total_memory)
    return found


class DeviceMemoryHook(Hook):
    """Samples the device allocator at step ends; bucket flushes ask for it themselves."""

    name = "memory"

    def modules(self) -> tuple[str, ...]:
        return ("torch.distributed",)

    def install(self, module: str) -> None:
        """Listen to step ends, where torch can use a device."""
        if torch.backends.cuda.is_built():
            self.recorder.progress.step_listeners.append(self.sample_step)

    def sample_step(self, step: int) -> None:
        """Add a sample for the step that has just ended."""
        add_device_sample(self, "step", step)


def add_device_sample(hook: Hook, at: str, step: int) -> None:
    """Record the device allocator's counters, if a device is in use."""
    try:
        if torch.cuda.is_initialized():
            sample = MemorySample(at, clock(), step, device=device_counters())
            hook.recorder.outbox.add(sample)
    except Exception as error:
        hook.fail(error)
