"""Names of dtypes: `str(dtype)` costs more than a lookup."""

from __future__ import annotations

import torch


class _Dtypes(dict[torch.dtype, tuple[str, int]]):
    def __missing__(self, dtype: torch.dtype) -> tuple[str, int]:
        known = self[dtype] = (str(dtype).removeprefix("torch."), dtype.itemsize)
        return known


DTYPES = _Dtypes()
"""Name and size in bytes of each dtype."""
