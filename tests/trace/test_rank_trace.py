"""Columns of collectives as they grow."""

from __future__ import annotations

import numpy as np
import pytest

from dsprof.trace.rank_trace import Collectives, CollectivesBuilder

LONG = 1 << 14


def built(*chunks: list[int]) -> Collectives:
    """Return the rows of several chunks, each of which has these bytes."""
    builder = CollectivesBuilder()
    for nbytes in chunks:
        builder.add_columns({"op": ["all_reduce"] * len(nbytes)}, {"nbytes": np.array(nbytes)})
    return builder.build()


@pytest.mark.parametrize(
    ("chunks", "dtype"),
    [
        (([],), np.int32),
        (([7], [7, 7]), np.int32),
        (([7, 7], [8], [7]), np.int32),
        (([7, 8], [9] * 100, [10]), np.int32),
        (([2**40], [2**40]), np.int64),
        (([7, 7], [2**40], [8]), np.int64),
        (([7, 8], [-(2**40)], [9]), np.int64),
        (([7] * LONG, [8]), np.int32),
        (([7] * LONG, [7]), np.int32),
    ],
)
def test_a_column_holds_what_was_added_in_as_many_bits_as_it_takes(chunks, dtype):
    nbytes = built(*chunks).nbytes
    assert nbytes.tolist() == [value for chunk in chunks for value in chunk]
    assert nbytes.dtype == dtype


def test_a_long_column_of_one_value_takes_the_memory_of_one():
    assert built([7] * LONG, [7]).nbytes.strides == (0,)


def test_a_word_that_a_later_chunk_brings_is_known_by_its_code():
    builder = CollectivesBuilder()
    for ops in (["all_reduce"], ["broadcast", "all_reduce"], ["broadcast"]):
        builder.add_columns({"op": ops}, {})
    rows = builder.build()
    found = [rows.words[code] for code in rows.op]
    assert found == ["all_reduce", "broadcast", "all_reduce", "broadcast"]
