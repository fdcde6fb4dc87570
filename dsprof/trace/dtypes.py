"""Types of elements, by the names that torch gives them."""

from __future__ import annotations

import re


def item_bytes(dtype: str) -> int:
    """Return the size of an element; of torch's default type if the name is empty.

    The name tells how many bits it has, as in "float8_e4m3fn" and "complex64"; "bool" has none.
    """
    bits = re.search(r"\d+", dtype)
    if bits is None:
        return 1 if dtype else 4
    return max(int(bits.group()[:4]) // 8, 1)
