from __future__ import annotations

import pytest

from dsprof.trace.collectives import family, is_even, is_rooted


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("all_reduce", "all_reduce"),
        ("allreduce_coalesced_", "all_reduce"),
        ("all_reduce_sparse", "all_reduce_sparse"),
        ("all_gather_into_tensor", "all_gather"),
        ("_allgather_base_", "all_gather"),
        ("reduce_scatter_tensor", "reduce_scatter"),
        ("_reduce_scatter_base_", "reduce_scatter"),
        ("reduce", "reduce"),
        ("gather", "gather"),
        ("all_to_all_single", "all_to_all"),
        ("isend", "send"),
        ("recv_any_source_", "recv"),
        ("monitored_barrier", "barrier"),
        ("Bcast", "broadcast"),
        ("_ALLGATHER_BASE", "all_gather"),
        ("AlltoAll", "all_to_all"),
        ("All2All", "all_to_all"),
        ("inference_all_reduce", "inference_all_reduce"),
        ("gather_into_tensor_", "gather"),
        ("gather_single", "gather"),
    ],
)
def test_family_knows_the_spellings(op, name):
    assert family(op) == name


@pytest.mark.parametrize("op", ["_broadcast_oop", "_reduce_oop", "gather_single", "scatter"])
def test_others_may_leave_what_one_rank_sends_or_receives(op):
    assert is_rooted(op)


@pytest.mark.parametrize("op", ["reduce_scatter", "all_gather_single", "allreduce", "barrier"])
def test_nobody_leaves_before_all_have_come(op):
    assert not is_rooted(op)


@pytest.mark.parametrize(
    ("op", "even"),
    [
        *(("reduce", True), ("_allgather_base_", True), ("all_reduce", True)),
        *(("all_gather", False), ("scatter", False), ("all_reduce_sparse", False)),
    ],
)
def test_ranks_give_and_take_as_much_as_the_others(op, even):
    assert is_even(op) is even
