"""Exposed communication by torch.profiler's record of kernels: an oracle that shares no code.

Times in us, as in the file.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Span = tuple[float, float]


def device_spans(file: Path) -> tuple[list[Span], list[Span]]:
    """Return what communicated and what computed on the device.

    With one rank NCCL copies from buffer to buffer; with more it runs kernels of its own.
    """
    communication: list[Span] = []
    computation: list[Span] = []
    for event in json.loads(file.read_text())["traceEvents"]:
        if event.get("cat") in ("kernel", "gpu_memcpy"):
            (communication if _communicates(event) else computation).append(_span(event))
    return communication, computation


def _communicates(event: dict[str, Any]) -> bool:
    name = str(event["name"]).lower()
    return "nccl" in name or "rccl" in name or (event["cat"] == "gpu_memcpy" and "dtod" in name)


def union(spans: Iterable[Span]) -> list[Span]:
    """Join spans that overlap."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in union(spans))


def exposed_us(file: Path) -> float:
    """Return the time in which the device communicated and computed nothing."""
    communication, computation = device_spans(file)
    return length([*communication, *computation]) - length(computation)


def idle_us(file: Path) -> float:
    """Return the time between the first and the last kernel that computes in which none ran."""
    events = json.loads(file.read_text())["traceEvents"]
    ran = [_span(e) for e in events if e.get("cat") == "kernel" and not _communicates(e)]
    return max(end for _, end in ran) - min(start for start, _ in ran) - length(ran)


def gaps_us(file: Path, kernels: int, after: int) -> float:
    """Return the time after the kernel of this place in each step of so many that compute.

    Without what kernels wait for processors that communication occupies: events do not show that.
    """
    _, computation = device_spans(file)
    ran = sorted(computation)
    gaps = [later[0] - earlier[1] for earlier, later in itertools.pairwise(ran)]
    return sum(gaps[after::kernels])


def _span(event: dict[str, Any]) -> Span:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])
