from __future__ import annotations

import pickle
from functools import reduce
from operator import or_
from random import Random

import pytest

from dsprof.analysis import per_rank
from dsprof.analysis.per_rank import PerRank


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
    assert facts.get(7) is None
    with pytest.raises(KeyError):
        facts[41]


def test_the_same_facts_arrive_in_another_process():
    assert pickle.loads(pickle.dumps(PerRank())) == {}
    facts = at_random(23)
    assert pickle.loads(pickle.dumps(facts)) == facts == {r: f"rank {r}" for r in range(23)}


def test_in_order_all_ranks_unpack_each_pack_once(monkeypatch):
    ordered, unpacked = at_random(42).in_order(), []
    unpack = per_rank.Packed.unpacked
    monkeypatch.setattr(
        per_rank.Packed, "unpacked", lambda self: unpacked.append(1) or unpack(self)
    )
    assert [*ordered.values()] == [f"rank {rank}" for rank in range(42)]
    assert len(unpacked) <= 42 // 4 + 1


def test_facts_in_order_stay_as_they_are_packed(monkeypatch):
    facts = of(range(42))
    monkeypatch.setattr(per_rank.Packed, "unpacked", lambda self: pytest.fail("unpacked"))
    assert [*facts.in_order()] == [*range(42)]
