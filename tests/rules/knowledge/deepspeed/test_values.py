from __future__ import annotations

import pytest

from dsprof.rules.knowledge.deepspeed.values import not_taken, takes

ZERO = "zero_optimization"


@pytest.mark.parametrize(
    ("path", "taken", "refused", "words"),
    [
        (f"{ZERO}.sub_group_size", 0, -1, "must be at least 0"),
        (f"{ZERO}.reduce_bucket_size", 1, 0, "must be at least 1"),
        (f"{ZERO}.offload_optimizer.ratio", 1.0, 1.1, "must be between 0 and 1"),
        ("compile.passes", ["z1"], ["z2"], "must be a list of z1, z3, autosp, autotp or null"),
        (f"{ZERO}.offload_param.device", "nvme", "NVMe", "must be one of none, cpu, nvme"),
        ("no.such.key", "a", "b", ""),
    ],
)
def test_a_value_that_is_not_taken_is_answered_with_what_is(path, taken, refused, words):
    assert not_taken(path, taken) == ""
    assert not_taken(path, refused) == words


def test_a_value_is_looked_at_from_a_release_on():
    every = takes().values()
    assert any(taken.since for taken in every)
    assert all(isinstance(taken.since, tuple) for taken in every)
    assert takes()["checkpoint"].since == ()
