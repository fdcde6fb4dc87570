"""The size of an element is in the name of its type."""

from __future__ import annotations

import pytest
import torch

from dsprof.trace.dtypes import item_bytes


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
    + [torch.complex64, torch.uint8, torch.int64, torch.bool],
    ids=str,
)
def test_an_element_is_as_large_as_torch_says(dtype: torch.dtype) -> None:
    assert item_bytes(str(dtype).removeprefix("torch.")) == dtype.itemsize


def test_of_an_unknown_type_the_default_is_taken() -> None:
    assert item_bytes("") == torch.get_default_dtype().itemsize
