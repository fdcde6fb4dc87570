"""Lets Accelerate's and Lightning's GPU strategies run on CPU over gloo; tests only.

Both libraries refuse DeepSpeed and FSDP where there is no GPU, and check it in one place each. Only
that check is answered differently here; what they do from then on is theirs.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from accelerate.state import DistributedType, PartialState
from lightning.pytorch.accelerators import CPUAccelerator, CUDAAccelerator

_original = PartialState._prepare_backend


def allow_accelerate(allow: bool) -> None:
    """Answer "several GPUs, over gloo" when Accelerate asks what it runs on; the device is CPU."""

    def answer(*args: Any, **kwargs: Any) -> tuple[str, DistributedType]:
        return "gloo", DistributedType.MULTI_GPU

    os.environ.pop("ACCELERATE_TORCH_DEVICE", None)
    if allow:
        os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    PartialState._prepare_backend = answer if allow else _original


class _CpuInPlaceOfCuda(CPUAccelerator, CUDAAccelerator):
    @staticmethod
    def parse_devices(devices: int) -> int:
        return devices

    @staticmethod
    def get_parallel_devices(devices: int) -> list[torch.device]:
        return [torch.device("cpu", index) for index in range(devices)]


def lightning_accelerator() -> CUDAAccelerator:
    """Return what Lightning takes for its CUDA accelerator and whose devices are CPUs."""
    return _CpuInPlaceOfCuda()
