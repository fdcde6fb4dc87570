from __future__ import annotations

import pytest

from dsprof.analysis.collectives import SIZE_EDGES_BYTES, busbw_factor


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 1.5),
        ("reduce_scatter_tensor", 0.75),
        ("all_gather_into_tensor", 0.75),
        ("all_to_all_single", 0.75),
        ("gather", 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send", 1.0),
        ("barrier", None),
        ("unheard_of", None),
    ],
)
def test_busbw_factor_of_four_ranks(op, factor):
    assert busbw_factor(op, 4) == factor


def test_busbw_factor_of_an_unknown_group_is_not_known():
    assert busbw_factor("all_reduce", 0) is None
    assert busbw_factor("all_reduce", 1) == 0


def test_classes_of_sizes_begin_at_their_names():
    kib, mib = 1024, 1024 * 1024
    assert (
        *(4 * kib, 64 * kib),
        *(mib, 4 * mib, 16 * mib, 64 * mib, 256 * mib),
    ) == SIZE_EDGES_BYTES
