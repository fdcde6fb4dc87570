from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import reduce
from operator import or_
from random import Random
from typing import Any

import numpy as np
import pytest

from dsprof.analysis import per_rank
from dsprof.analysis.per_rank import PerRank
from dsprof.trace.columns import IntArray
from dsprof.trace.packed import Packed


@pytest.fixture(autouse=True)
def few_ranks_are_packed(monkeypatch):
    monkeypatch.setattr(per_rank, "PACKED_RANKS", 4)


def of(ranks) -> PerRank[str]:
    """Facts that were joined rank by rank."""
    return reduce(or_, (PerRank({rank: f"rank {rank}"}) for rank in ranks), PerRank[str]())


def at_random(count: int) -> PerRank[str]:
    ranks = [*range(count)]
    Random(7).shuffle(ranks)
    return of(ranks)


def test_ranks_come_in_their_order_whatever_order_they_were_joined_in():
    assert [*at_random(23).items()] == [(rank, f"rank {rank}") for rank in range(23)]


def test_an_absent_rank_is_not_found():
    facts = of(range(0, 40, 2))
    assert 6 in facts
    assert 7 not in facts
    assert "6" not in facts
    assert facts.get(7) is None
    with pytest.raises(KeyError):
        facts[41]


def test_the_same_facts_arrive_in_another_process():
    assert pickle.loads(pickle.dumps(PerRank())) == {}
    facts = at_random(23)
    assert pickle.loads(pickle.dumps(facts)) == facts == {r: f"rank {r}" for r in range(23)}


def test_in_order_all_ranks_unpack_each_pack_once(monkeypatch):
    ordered, unpacked = at_random(42).in_order(), []
    unpack = Packed.unpacked
    monkeypatch.setattr(Packed, "unpacked", lambda self: unpacked.append(1) or unpack(self))
    assert [*ordered.values()] == [f"rank {rank}" for rank in range(42)]
    assert len(unpacked) <= 42 // 4 + 1


def test_facts_in_order_stay_as_they_are_packed(monkeypatch):
    facts = of(range(42))
    monkeypatch.setattr(Packed, "unpacked", lambda self: pytest.fail("unpacked"))
    assert [*facts.in_order()] == [*range(42)]


@dataclass(frozen=True, slots=True)
class _Facts:
    times_ns: IntArray
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    label: str


@pytest.mark.parametrize(
    "column",
    [
        np.array([], np.int64),
        np.array([0, -1, 1 << 62, -(1 << 63), 255, 256], np.int64),
        np.arange(20, dtype=np.int64)[::3],
        np.array([True, False]),
        np.array([[1, 2], [3, 4]]),
        np.array([1.5]),
    ],
)
def test_a_column_is_the_same_after_packing(column: Any):
    found = Packed(_Facts(column, "a")).unpacked()
    assert (found.label, found.times_ns.dtype) == ("a", column.dtype)
    assert np.array_equal(found.times_ns, column)
    assert found.times_ns.flags.writeable


def test_dataclasses_of_all_kinds_are_the_same_after_packing():
    facts = [_Facts(np.arange(3), "a"), _Named(label="b"), _Facts]
    found = Packed([*facts, facts[0]]).unpacked()
    assert (found[0].label, found[1], found[2]) == ("a", facts[1], _Facts)
    assert found[3] is found[0]  # held once


def test_ranks_without_a_gap_take_no_memory_for_their_numbers(monkeypatch):
    monkeypatch.setattr(per_rank, "PACKED_RANKS", 4096)
    whole, double = (
        len(pickle.dumps(PerRank(dict.fromkeys(range(count))))) for count in (4096, 8192)
    )
    assert double - whole < 4096 * 4
