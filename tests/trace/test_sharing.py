"""Equal values of ranks are one."""

from __future__ import annotations

import numpy as np

from dsprof.trace.sharing import shared


def test_equal_values_are_one_object() -> None:
    one, other = (np.arange(10) for _ in range(2))
    assert shared(one) is shared(other)
    assert shared(one).tolist() == one.tolist()
    assert shared({"a": [1]}) is shared({"a": [1]})
    assert shared(one) is not shared(one.astype(np.int32))


def test_large_columns_stay_as_they_are() -> None:
    large = np.arange(10_000)
    assert shared(large) is large
