"""Checks and times of one team, with a team that needs no processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from dsprof.bench import measure as module
from dsprof.bench.clock import clock_of
from dsprof.bench.contention import measure_hiding
from dsprof.bench.groups import Plan
from dsprof.bench.measure import measure
from dsprof.bench.primitives import Trial

PAIR = Plan("world", (0, 1), False)
CPU = torch.device("cpu")


@dataclass
class TwoRanks:
    """Rank 0 of two; `other` says what rank 1 tells where rank 0 tells a value of the type."""

    other: dict[type, object] = field(default_factory=dict)
    plan: Plan = PAIR
    size: int = 2
    me: int = 0
    group: object = None

    def barrier(self) -> None:
        pass

    def told(self, value):
        return [value, self.other.get(type(value), value)]


@pytest.fixture
def only(monkeypatch):
    """Measure one operation, by a clock that says 1 ms."""

    def measured(team, op="all_reduce", trial=lambda at: Trial(lambda: None), sizes=(8, 16)):
        monkeypatch.setattr(module, "PRIMITIVES", {op: trial})
        monkeypatch.setattr(module, "clock_of", lambda device: lambda call: 1_000_000)
        return measure(team, CPU, sizes)

    return measured


@pytest.mark.parametrize(("op", "time_ns"), [("all_reduce", 1e6), ("broadcast", 3e6)])
def test_the_last_to_enter_speaks_where_all_wait_for_all_else_the_slowest(only, op, time_ns):
    team = TwoRanks({list: [3_000_000] * 40})
    (cost,) = only(team, op).costs
    assert [sample.time_ns for sample in cost.samples] == [time_ns, time_ns]


def test_sizes_are_whole_shares_of_every_rank(only):
    (cost,) = only(TwoRanks(), sizes=(4, 8, 13, 4096)).costs
    assert [sample.nbytes for sample in cost.samples] == [8, 16, 4096]


def test_point_to_point_is_for_pairs(only):
    three = TwoRanks(plan=Plan("world", (0, 1, 2), False), size=3)
    assert only(three, "send").costs == []
    assert len(only(TwoRanks(), "send").costs) == 1


def test_what_one_rank_cannot_do_is_measured_on_none(only):
    outcome = only(TwoRanks({str: "no memory"}))
    assert outcome.costs == []
    assert outcome.unsupported == {"all_reduce": "8 bytes in world: no memory"}


def test_what_a_backend_refuses_is_told_in_its_words(only):
    def refused(at):
        raise NotImplementedError("this backend\nhas no all_reduce")

    outcome = only(TwoRanks(), trial=refused)
    assert outcome.unsupported == {"all_reduce": "8 bytes in world: this backend has no all_reduce"}


def test_a_wrong_result_is_no_sample_and_names_its_rank(only):
    def wrong(at):
        result, expected = at.values(0, 4), at.values(0, 4)
        result[2] += 1
        return Trial(lambda: None, result, result, expected)

    outcome = only(TwoRanks({str: ""}), trial=wrong)
    assert outcome.costs == []
    (one,) = outcome.wrong
    assert str(one) == (
        "all_reduce of 8 bytes in group world of 2 ranks, rank 0: "
        "1 elements, the first is 2: 3 in place of 2"
    )


def test_a_device_is_timed_by_its_own_events(monkeypatch):
    seen = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            seen.append("record")

        def synchronize(self):
            seen.append("synchronize")

        def elapsed_time(self, end):
            return 1.5

    monkeypatch.setattr(torch, "xpu", SimpleNamespace(Event=Event))
    clock = clock_of(torch.device("xpu"))
    assert clock(lambda: seen.append("call")) == 1_500_000
    assert seen == ["record", "call", "record", "synchronize"]


@pytest.mark.parametrize(("both_ms", "factor"), [(10, 0.0), (14, 0.5), (18, 1.0), (8, 0.0)])
def test_hiding_costs_what_both_take_beyond_the_longer(monkeypatch, both_ms, factor):
    # Compute takes 10 ms, the collective 8: hidden free of charge both take 10, for nothing 18.
    took = {"multiply": 10, "compute": 10, "collective": 8, "both": both_ms}
    clock = lambda call: took[call.__name__] * 1_000_000  # noqa: E731
    monkeypatch.setattr("dsprof.bench.contention.clock_of", lambda device: clock)
    found = measure_hiding(TwoRanks(), CPU, 1 << 20)
    assert (found.low, found.high) == (factor, factor)
    assert (found.compute_ns, found.collective_ns, found.nbytes) == (10e6, 8e6, 1 << 20)
