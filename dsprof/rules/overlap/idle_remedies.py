"""Why a device is idle and what helps, by what its host does meanwhile."""

from __future__ import annotations

from typing import NamedTuple

from dsprof.analysis.aggregates.idle_causes import LAUNCHING, NAMES, PYTHON, UNRECORDED
from dsprof.trace.device import (
    ALLOCATION,
    DATA_LOADER,
    LOADING,
    SYNCHRONISATION,
    TRANSFER,
)


class Remedy(NamedTuple):
    """One cause of idle time, and the action against it, at length and in a few words."""

    cause: str
    action: str
    fix: str


REMEDIES = {
    NAMES[LOADING]: Remedy(
        "The host compiles or loads kernels, or instantiates graphs, in the middle of the run.",
        "Run more warm-up steps before measuring. If it recurs, set TORCH_LOGS=recompiles to see "
        "what recompiles, keep shapes constant or mark them dynamic, and capture graphs once.",
        "Keep shapes constant, and warm up before measuring",
    ),
    NAMES[ALLOCATION]: Remedy(
        "The host calls the runtime to allocate or free memory; freeing waits for the device.",
        "Remove torch.cuda.empty_cache() from the step, set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, reuse pinned buffers, and leave the "
        "allocator room to cache (use a smaller micro-batch).",
        "Remove `torch.cuda.empty_cache()` from the step",
    ),
    NAMES[TRANSFER]: Remedy(
        "The host is blocked in copies between host and device.",
        "Copy from pinned memory with non_blocking=True, and keep values on the device.",
        "Copy from pinned memory with `non_blocking=True`",
    ),
    NAMES[SYNCHRONISATION]: Remedy(
        "The host waits for the device, so it launches nothing ahead.",
        "Remove .item(), .cpu(), prints of tensors and torch.cuda.synchronize() from the step; "
        "host-synchronisation names the calls.",
        "Remove `.item()`, `.cpu()` and `synchronize()` from the step",
    ),
    NAMES[DATA_LOADER]: Remedy(
        "The host waits for the next batch.",
        "Raise num_workers and prefetch_factor of the DataLoader, set pin_memory=True and "
        "persistent_workers=True, and move preprocessing out of the training process.",
        "Raise `num_workers` and `prefetch_factor` of the data loader",
    ),
    LAUNCHING: Remedy(
        "The host launches kernels more slowly than the device executes them.",
        'Use larger micro-batches, fused optimizers, torch.compile(mode="reduce-overhead") or '
        "CUDA graphs.",
        "Launch fewer kernels: larger micro-batches, fused optimizers, CUDA graphs",
    ),
    PYTHON: Remedy(
        "The host runs Python between operators.",
        "Look for loops, logging, tokenisation and garbage collection in the stacks of the "
        "profile, and move them out of the step.",
        "Move Python work (logging, tokenisation) out of the step",
    ),
    UNRECORDED: Remedy(
        "The profile shows no host call during most of the idle time: the host runs Python code, "
        "or waits for data, another process or the file system.",
        "Profile once with with_stack=True and ProfilerActivity.CPU, or with "
        "nsys --trace=cuda,osrt, to see what the host does.",
        "Profile once with `with_stack=True` to see what the host does",
    ),
}
