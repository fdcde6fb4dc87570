"""How long a call takes: on the host where that computes, by events of the device elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch

Clock = Callable[[Callable[[], object]], int]
"""Makes a call, waits for it, and returns how long it took, in ns."""


def clock_of(device: torch.device) -> Clock:
    """Return the clock of a device."""
    return _on_host if device.type == "cpu" else _on_device(getattr(torch, device.type))


def _on_host(call: Callable[[], object]) -> int:
    start = perf_counter_ns()
    call()
    return perf_counter_ns() - start


def _on_device(module: Any) -> Clock:
    """Return a clock by events on the current stream, which waits for synchronous collectives."""

    def elapsed(call: Callable[[], object]) -> int:
        start, end = (module.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return round(float(start.elapsed_time(end)) * 1e6)

    return elapsed
