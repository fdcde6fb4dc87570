"""How fast ranks multiply matrices, by precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from dsprof.analysis.baseline import Product
from dsprof.bench.clock import clock_of
from dsprof.bench.groups import told

_WIDTHS = {"cpu": 512}
WIDTH = 4096
"""Matrices for devices other than CPUs are this wide, large enough to keep all of a device busy."""
_BUDGET_NS = 300_000_000
"""All repetitions in one precision take about this long; a product in a reference path, half."""
_MOST = 40


class _Precision(NamedTuple):
    name: str
    dtype: torch.dtype
    tf32: bool = False


_PRECISIONS = (
    _Precision("fp32", torch.float32),
    _Precision("tf32", torch.float32, tf32=True),
    _Precision("bf16", torch.bfloat16),
    _Precision("fp16", torch.float16),
)


def measure_products(device: torch.device, everyone: Any, size: int) -> tuple[Product, ...]:
    """Time square products on all ranks at once; a precision that a rank refuses is left out."""
    width = _WIDTHS.get(device.type, WIDTH)
    found = []
    for precision in _PRECISIONS:
        if precision.tf32 and not _has_tf32(device):
            continue
        medians = told(_median_ns(precision, width, device), everyone, size)
        known = [median for median in medians if median is not None]
        if len(known) == size:
            product = Product(precision=precision.name, width=width, time_ns=max(known))
            found.append(product)
    return tuple(found)


def _median_ns(precision: _Precision, width: int, device: torch.device) -> float | None:
    """Return the median time of a product; None where the device does not do it."""
    clock = clock_of(device)
    try:
        multiply = square_product(precision.dtype, width, device)
        with _tf32(precision.tf32):
            multiply()
            first_ns = max(1, clock(multiply))
            repeats = min(_BUDGET_NS // first_ns, _MOST)
            times = [first_ns, *(clock(multiply) for _ in range(repeats))]
    except RuntimeError:  # "not implemented for 'Half'"
        return None
    return float(np.median(times))


def square_product(dtype: torch.dtype, width: int, device: torch.device) -> Callable[[], None]:
    """Return what multiplies two matrices of `width` by `width`."""
    matrix = torch.ones(width, width, device=device).to(dtype)
    out = torch.empty_like(matrix)

    def multiply() -> None:
        torch.mm(matrix, matrix, out=out)

    return multiply


@contextmanager
def _tf32(is_allowed: bool) -> Iterator[None]:
    """Multiply fp32 in TF32, if `is_allowed`; the setting of the process comes back."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if is_allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _has_tf32(device: torch.device) -> bool:
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    return is_nvidia and torch.cuda.get_device_capability(device) >= (8, 0)
