"""The n-th collective of a group on one rank is the n-th on every other, whatever is missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dsprof.analysis.aggregates import arrivals as module
from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.alignment.clocks import Alignment
from dsprof.analysis.alignment.matching import Matched
from dsprof.analysis.rank.sampling import OneIn, in_sample, sample
from dsprof.analysis.run.lateness import causes, lateness, split_waits
from dsprof.analysis.run.votes import vote
from dsprof.analysis.summarise import summarise_traces
from dsprof.analysis.summary import RankClock
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import (
    MS,
    enqueued,
    group,
    header,
    issued,
    ns,
    rank_trace,
    stall,
    sync,
)


def arrivals(*traces: RankTrace, bounds: dict[int, int | None] | None = None) -> Arrivals:
    known = bounds or {}
    clocks = {t.rank: RankClock(0, known.get(t.rank, 0)) for t in traces}
    return summarise_traces(traces, Alignment(clocks, "given"), [Arrivals])[Arrivals]


def matched(*traces: RankTrace, bounds: dict[int, int | None] | None = None) -> Matched:
    (one,) = arrivals(*traces, bounds=bounds).matched
    return one


def rank(number: int, *arrive: float, first: int = 0, seq: int = 0, **fields) -> RankTrace:
    """Collective k of 100 ms: entered `arrive[k]` ms after its begin, left at 90 ms."""
    comm = [
        sync("all_reduce", 100 * (first + k) + at, 90 - at, seq=seq + k, step=first + k)
        for k, at in enumerate(arrive)
    ]
    return rank_trace(number, fields.pop("world", 2), comm=comm, **fields)


def test_wait_and_transfer_by_hand():
    one = matched(rank(0, 10, 70), rank(1, 60, 20))
    split = split_waits(one)
    assert (split.waited_ns / MS).tolist() == [[50, 0], [0, 50]]
    assert (split.transfer_ns / MS).tolist() == [[30, 20], [30, 20]]
    assert split.last.tolist() == [1, 0]
    late = lateness([one])
    assert (late.caused_ns / MS).tolist() == [50, 50]
    assert (late.lasts.tolist(), late.met.tolist()) == ([1, 1], [2, 2])


def test_who_was_last_is_known_step_by_step():
    who = causes([matched(rank(0, 10, 70, 20), rank(1, 60, 20, 60))])
    assert (who.by_rank([1, 2]) / MS).tolist() == [25, 20]
    assert (who.by_rank([0, 1]) / MS).tolist() == [25, 25]
    assert (who.worst_step(1, [0, 1, 2]), who.worst_step(1, [1, 2])) == (0, 2)


@pytest.mark.parametrize("late_ms", [900, 1100, 5000])
def test_waits_of_seconds_are_exact(late_ms: float):
    """Beyond a second the times of a group no longer fit into 32 bits."""
    early, late = (
        [sync("all_reduce", 9000 * k + at, 6000 - at, seq=k, step=k) for k in range(50)]
        for at in (10, 10 + late_ms)
    )
    split = lateness([matched(rank_trace(0, comm=early), rank_trace(1, comm=late))])
    assert split.waited_ns.tolist() == [[late_ms * MS] * 50, [0] * 50]
    assert split.transfer_ns.tolist() == [(5990 - late_ms) * MS * 50] * 2


def test_only_time_that_held_the_rank_is_a_wait():
    """Async: rank 0 arrives at 10 and waits from 50 on; rank 1 arrives at 60."""
    early = rank_trace(0, comm=[issued("all_reduce", 10, 90, wait=50, waited=90)])
    split = split_waits(matched(early, rank(1, 60)))
    assert (split.waited_ns[0, 0] / MS, split.transfer_ns[0, 0] / MS) == (10, 30)


def test_windows_that_open_and_close_at_other_times_match_in_what_they_share():
    one = matched(rank(0, 10, 11, 12, 13), rank(1, 60, 61, first=1, seq=1))
    assert one.seq.tolist() == [1, 2]
    assert (split_waits(one).waited_ns[0] / MS).tolist() == [49, 49]


def test_numbers_that_count_from_the_windows_begin_are_shifted():
    """Rank 1 began one collective later, and calls number 1 what rank 0 calls number 2."""
    one = matched(rank(0, 10, 11, 12, 13, seq=1), rank(1, 60, 61, 62, first=1, seq=1))
    assert one.seq.tolist() == [2, 3, 4]
    assert one.unplaced == ()


def test_a_rank_that_fits_nobody_is_said_so():
    one = matched(
        rank(0, 10, 11, world=3), rank(1, 60, 61, world=3), rank(2, 10, 11, first=50, world=3)
    )
    assert (one.ranks, one.unplaced) == ((0, 1), (2,))


def test_a_missing_member_leaves_the_group_incomplete():
    assert not matched(rank(0, 10, world=3), rank(1, 60, world=3)).is_whole
    assert matched(rank(0, 10), rank(1, 60)).is_whole


def test_differences_below_the_bound_of_the_clocks_are_not_interpreted():
    heads = [header(0), header(1, host="node-b", boot_id="boot-b")]
    traces = rank(0, 10, 56, head=heads[0]), rank(1, 60, 60, head=heads[1])
    split = split_waits(matched(*traces, bounds={1: 5 * MS}))
    assert (split.waited_ns[0] / MS).tolist() == [50, 0]
    assert (split_waits(matched(*traces)).waited_ns[0] / MS).tolist() == [50, 4]


def test_ranks_of_one_host_are_compared_whatever_its_clock_is_to_others():
    one = rank(0, 10, head=header(0, host="b", boot_id="b"))
    split = split_waits(
        matched(
            one, rank(1, 12, head=header(1, host="b", boot_id="b")), bounds={0: MS * 9, 1: MS * 9}
        )
    )
    assert split.waited_ns[0, 0] == 2 * MS


def test_ranks_of_unknown_clocks_are_set_by_the_ends():
    """Rank 1's clock is an hour ahead: its collectives last 30 ms less, so it came 30 ms later."""
    ahead = rank(1, 40, 60, first=36_000, head=header(1, host="node-b", boot_id="b"))
    one = matched(rank(0, 10, 30), ahead, bounds={1: None})
    assert one.by_ends
    # Less than the shortest call tells nothing: 50 ms in the first, 30 ms in the second.
    assert (split_waits(one).waited_ns[0] / MS).tolist() == [0, 0]
    longer = rank(1, 80, 60, first=36_000, head=header(1, host="node-b", boot_id="b"))
    one = matched(rank(0, 10, 30), longer, bounds={1: None})
    assert (split_waits(one).waited_ns[0] / MS).tolist() == [70, 0]


def test_what_some_may_leave_early_and_what_is_alone_is_left_out():
    calls = [
        sync("broadcast", 0, 9, seq=1),
        sync("send", 0, 9, seq=2),
        sync("barrier", 0, 9, seq=3),
    ]
    alone = sync("all_reduce", 0, 9, group=2, seq=1)
    groups = {1: group(2), 2: group(1, id=2, key="me")}
    rows = arrivals(rank_trace(0, comm=[*calls, alone], groups=groups)).ranks[0].rows
    assert rows.seq.tolist() == [3]


def test_collectives_that_never_ended_are_left_out():
    rows = arrivals(rank_trace(0, comm=[issued("all_reduce", 0, None)])).ranks[0].rows
    assert len(rows) == 0


def test_merging_in_any_order_is_the_same():
    parts = [arrivals(rank(n, 10 * n, 20, world=3)) for n in range(3)]
    one = parts[0].merge(parts[1]).merge(parts[2]).matched[0]
    other = parts[0].merge(parts[1].merge(parts[2])).matched[0]
    assert one.arrive.tolist() == other.arrive.tolist()


def test_a_sample_is_the_same_on_all_ranks_and_nested():
    seq = np.arange(100_000, dtype=np.int64)
    few, stride = sample(seq, np.arange(100_000), 1_000)
    more, finer = sample(seq, np.arange(0, 100_000, 2), 1_000)
    assert (stride, finer) == (128, 64)
    assert len(few) == pytest.approx(100_000 / 128, rel=0.1)
    assert set(few[few % 2 == 0]) <= set(more)


def test_memory_is_bounded_for_thousands_of_ranks(monkeypatch):
    monkeypatch.setattr(module, "ROWS", 8_000 * 300)
    comm = [sync("all_reduce", n, 0.5, seq=n, step=0) for n in range(5_000)]
    (one,) = arrivals(rank_trace(0, 8_000, comm=comm)).ranks.values()
    assert (len(one.rows) <= 375, set(one.one_in.values())) == (True, {OneIn(1, 16)})


def test_many_calls_of_one_group_leave_those_of_another_in_the_sample(monkeypatch):
    """A step has 50 calls of two ranks, and one of all, for which rank 1 is late."""
    monkeypatch.setattr(module, "ROWS", 128)

    def trained(number: int) -> RankTrace:
        pair = group(
            4, id=2, key=f"pair {number // 2}", ranks=[number // 2 * 2, number // 2 * 2 + 1]
        )
        comm = []
        for n in range(40):
            comm += [
                sync("all_reduce", 1000 * n + k, 0.5, group=2, seq=50 * n + k, step=n)
                for k in range(50)
            ]
            late = 40 if number == 1 else 0
            comm.append(sync("all_reduce", 1000 * n + 100 + late, 50 - late, seq=n, step=n))
        return rank_trace(number, 4, comm=comm, groups={1: group(4), 2: pair})

    found = arrivals(*map(trained, range(4)))
    assert all(len(one.rows) <= 96 for one in found.ranks.values())
    late = lateness(found.matched)
    votes = vote(late, MS)
    assert (votes.late, votes.steps) == ((1,), len(late.steps))
    assert votes.cast >= 20
    by_size = {len(one.ranks): one for one in found.matched}
    assert (by_size[4].one_in, by_size[2].one_in) == (OneIn(2, 1), OneIn(2, 32))


def test_waits_of_sampled_calls_are_scaled():
    one = matched(rank(0, 10, 70), rank(1, 60, 20))
    whole, sampled = lateness([one]), lateness([replace(one, one_in=OneIn(calls=4))])
    assert (whole.one_in, sampled.one_in) == (1, 4)
    for column in ("waited_ns", "waited_in_all_ns", "caused_ns", "transfer_ns"):
        assert (getattr(sampled, column) == 4 * getattr(whole, column)).all()
    assert sampled.waited_ns.max() == 200 * MS


def late_at_the_first_call(number: int, steps: int, calls: int) -> RankTrace:
    """Rank 1 comes 40 ms late to the first call of each step."""
    comm = []
    for step in range(steps):
        late = 40 if number == 1 else 0
        comm += [
            sync("all_reduce", 1000 * step + late, 50 - late, seq=calls * step, step=step),
            *(
                sync("all_reduce", 1000 * step + 100 * k, 50, seq=calls * step + k, step=step)
                for k in range(1, calls)
            ),
        ]
    return rank_trace(number, 4, comm=comm)


def test_a_sample_is_of_whole_steps_so_that_what_each_step_waited_is_exact(monkeypatch):
    monkeypatch.setattr(module, "ROWS", 4 * 64)
    whole = arrivals(*(late_at_the_first_call(n, 80, calls=2) for n in range(4)))
    (one,) = whole.matched
    assert one.one_in == OneIn(4, 1)
    late, steps = lateness([one], range(80)), set(one.step.tolist())
    assert len(one.seq) == 2 * len(steps)
    assert (late.asked, late.compared) == (80, len(steps))
    assert late.waited_ns.tolist() == [[ns(0 if n == 1 else 40)] * len(steps) for n in range(4)]
    assert late.waited_in_all_ns.tolist() == [ns(0 if n == 1 else 40 * 80) for n in range(4)]
    assert late.caused_ns.tolist() == [0, pytest.approx(ns(40 * 80)), 0, 0]
    assert causes([one]).by_rank(range(40)).tolist() == [0, ns(40), 0, 0]


def test_of_few_steps_calls_are_sampled(monkeypatch):
    monkeypatch.setattr(module, "ROWS", 4 * 64)
    whole = arrivals(*(late_at_the_first_call(n, 20, calls=9) for n in range(4)))
    (one,) = whole.matched
    assert one.one_in == OneIn(1, 4)
    assert len(one.seq) <= 80


def test_samples_of_ranks_with_unequally_many_calls_have_some_in_common(monkeypatch):
    """Rank 3 was killed half way: of its steps one in two is kept, of the others' one in four."""
    monkeypatch.setattr(module, "ROWS", 4 * 64)
    ranks = [late_at_the_first_call(n, 40 if n == 3 else 80, calls=2) for n in range(4)]
    (one,) = arrivals(*ranks).matched
    assert one.one_in == OneIn(4, 1)
    assert set(one.step.tolist()) == set(in_sample(range(40), 4).tolist())


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_a_vote_compares_each_rank_with_the_median_and_the_least_of_the_others(count):
    arrive = [10, 47, 22, 80, 33, 51, 60, 15][:count]
    late = lateness([matched(*(rank(n, at, world=count) for n, at in enumerate(arrive)))])
    votes = vote(late, MS)
    waited = [(max(arrive) - at) * MS for at in arrive]
    for n in range(count):
        others = waited[:n] + waited[n + 1 :]
        assert votes.median_ns[n] == max(int(np.median(others)) - waited[n], 0)
        assert votes.least_ns[n] == max(min(others) - waited[n], 0)


def test_a_number_that_comes_twice_on_a_rank_is_left_out():
    twice = rank(0, 10, 20, 30)
    twice.collectives.seq[1] = 0
    assert matched(twice, rank(1, 60, 60, 60)).seq.tolist() == [2]


def on_device(number: int, *arrive: float, bound: float) -> RankTrace:
    """As `rank`, with a device that is placed up to `bound` ms too early."""
    comm = [enqueued("all_reduce", 100 * k, seq=k, step=k) for k in range(len(arrive))]
    stalls = [
        stall(call, "collective", 100 * k + at, 100 * k + 90, bound_ns=ns(bound))
        for k, (call, at) in enumerate(zip(comm, arrive, strict=True))
    ]
    return rank_trace(number, comm=comm, stalls=stalls, head=header(number, device="cuda"))


def test_what_the_place_of_a_device_leaves_open_is_not_interpreted():
    """One host, one clock, and yet rank 1 may have come up to 3 ms later than said."""
    one = matched(on_device(0, 10, 10, bound=0), on_device(1, 12, 60, bound=3))
    assert (split_waits(one).waited_ns[0] / MS).tolist() == [0, 50]
    exact = matched(on_device(0, 10, bound=0), on_device(1, 12, bound=0))
    assert split_waits(exact).waited_ns[0, 0] == 2 * MS


def test_a_rank_that_shares_only_the_first_collective_is_shifted_to_it():
    """Rank 1 calls number 1 what rank 0 calls number 5."""
    one = matched(rank(0, 10, 11, 12, seq=5), rank(1, 60, seq=1))
    assert (one.seq.tolist(), one.unplaced) == ([5], ())


def test_of_a_sample_and_without_times_no_arrivals_are_known():
    known, sampled = rank(0, 10, 20), rank(0, 10, 20)
    sampled.is_sampled = True
    untimed = rank(0, 10, 20, head=header(device="cuda", backend="nccl"))
    assert [len(arrivals(one).ranks[0].rows) for one in (known, sampled, untimed)] == [2, 0, 0]
