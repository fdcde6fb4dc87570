from __future__ import annotations

import itertools

import numpy as np

from dsprof.analysis.aggregates.timelines import CANDIDATES, RANKS, SAMPLE, Timelines
from dsprof.analysis.rank.drawing import BARS_PER_LANE, WHOLE
from dsprof.analysis.summary import RankClock
from dsprof.trace.device_activity import COMMUNICATION, COMPUTE, DeviceActivity
from dsprof.trace.schema import Fetch, Flush
from tests.factories.trace import (
    MS,
    captured,
    copy,
    disagreeing,
    ns,
    rank_trace,
    span,
    step,
    summary,
    sync,
    zero_rank,
)

LENGTHS = [300, 300, 50, 51, 52, 53, 54, 200, 55, 56, 57, 58]
"""The first two are warm-up; step 7 is the worst."""


def uneven(rank: int, longer: float = 0):
    starts = [sum(LENGTHS[:n]) for n in range(len(LENGTHS))]
    steps = [
        step(n, start, start + length + longer * n / 100)
        for n, (start, length) in enumerate(zip(starts, LENGTHS, strict=True))
    ]
    return rank_trace(rank, steps=steps)


def test_worst_and_median_are_of_measured_steps():
    timelines = summary(uneven(0), uneven(1, longer=1))[Timelines]
    chosen = dict(timelines.choose())
    assert (chosen["worst"], LENGTHS[chosen["median"]]) == (7, 54)
    assert timelines.missing(chosen.values(), (0, 1)) == {}


def test_the_choice_is_by_the_mean_over_ranks(monkeypatch):
    monkeypatch.setattr("dsprof.analysis.aggregates.timelines.SAMPLE", 0)
    timelines = summary(*disagreeing())[Timelines]
    assert timelines.choose() == [("worst", 5), ("median", 3), ("first", 2)]
    assert timelines.missing((5, 3, 2), (0, 1)) == {1: {3}}


def test_a_rank_that_ends_early_does_not_hide_the_worst_step_of_the_others():
    cut = uneven(2)
    cut.steps = cut.steps[:6]
    timelines = summary(uneven(0), uneven(1), cut)[Timelines]
    chosen = dict(timelines.choose())
    assert chosen["worst"] == 7
    assert set(timelines.missing(chosen.values(), (0, 1))) == set()
    pair = summary(uneven(0), cut)[Timelines]
    assert max(number for _, number in pair.choose()) < 6


def test_a_step_as_long_as_the_median_is_shown_if_all_ranks_have_drawn_it():
    # A golden ratio apart: the order of the steps differs between ranks and their mean.
    shares = [[(n * 0.618 + rank * 0.3) % 1 for n in range(500)] for rank in range(4)]
    traces = []
    for rank, own in enumerate(shares):
        lengths = [90 + share / 5 for share in own]
        steps = [step(n, 100 * n, 100 * n + length) for n, length in enumerate(lengths)]
        traces.append(rank_trace(rank, steps=steps))
    timelines = summary(*traces)[Timelines]
    median = dict(timelines.choose())["median"]
    assert timelines.missing([median], range(4)) == {}
    undrawn = dict(timelines.with_details({}, ()).choose())["median"]
    assert set(timelines.missing([undrawn], range(4)))


def test_the_worst_step_leads_also_where_it_is_the_first_one():
    lengths = [10, 10, 90, 50, 60, 50, 50, 50]
    steps = [step(n, 100 * n, 100 * n + length) for n, length in enumerate(lengths)]
    chosen = summary(rank_trace(steps=steps))[Timelines].choose()
    assert [name for name, _ in chosen] == ["worst", "median"]
    assert chosen[0] == ("worst", 2)


def test_only_the_lowest_ranks_are_drawn():
    timelines = summary(*(uneven(rank) for rank in reversed(range(RANKS + 3))))[Timelines]
    assert timelines.ranks == tuple(range(RANKS))
    assert all(set(drawn) == set(range(RANKS)) for drawn in timelines.steps.values())
    assert timelines.durations[7] == (ns(200) * (RANKS + 3), RANKS + 3)


def test_steps_in_counters_are_not_drawn():
    timelines = summary(captured(window=range(4, 7), steps=10))[Timelines]
    assert set(timelines.steps) == {4, 5, 6}
    assert timelines.choose()


def test_no_steps_give_no_timeline():
    assert summary(rank_trace())[Timelines].choose() == []


def test_bars_lie_on_the_time_line_of_the_run():
    trace = zero_rank(steps=1, step_ms=100, comm_ms=5)
    detail = Timelines.collect(trace, RankClock(offset_ns=7 * MS)).steps[0][0]
    bars = {bar.lane: bar for bar in detail.bars if bar.lane != "phase"}
    assert detail.start_ns == 7 * MS
    assert bars["communication"].start_ns == ns(75 + 7)
    assert bars["communication"].kind == "all_reduce"
    assert (bars["communication"].label, bars["communication"].group) == ("1.00 MiB, sync", "world")
    activity = [(b.kind, b.start_ns, b.end_ns) for b in detail.bars if b.lane == "activity"]
    assert activity == [
        ("compute", ns(7), ns(82)), ("blocked", ns(82), ns(87)), ("compute", ns(87), ns(97)),
        ("other", ns(97), ns(107)),
    ]  # fmt: skip
    assert [bar.kind for bar in detail.bars if bar.lane == "phase"] == [
        "forward",
        "backward",
        "step",
    ]


def test_copies_of_a_step_are_drawn_with_their_size():
    copies = [copy(20 + 100 * number, 5, step=number) for number in range(2)]
    trace = zero_rank(steps=2, step_ms=100, copies=copies)
    detail = Timelines.collect(trace, RankClock()).steps[1][0]
    assert [
        (bar.kind, bar.start_ns, bar.end_ns, bar.label)
        for bar in detail.bars
        if bar.lane == "copies"
    ] == [("copies", ns(120), ns(125), "gradient to host, 1.00 MiB")]


def test_the_longest_bars_are_kept_and_the_rest_counted():
    many = [sync("all_reduce", 10 + 2 * n, 0.5, step=0) for n in range(BARS_PER_LANE + 20)]
    longest = sync("all_gather", 1, 8, step=0)
    trace = rank_trace(
        steps=[step(0, 0, 2000)], spans=[span("forward", 0, 2000)], comm=[*many, longest]
    )
    detail = Timelines.collect(trace, RankClock()).steps[0][0]
    kept = [bar.kind for bar in detail.bars if bar.lane == "communication"]
    assert len(kept) == BARS_PER_LANE
    assert "all_gather" in kept
    assert sum(bar.lane == "activity" for bar in detail.bars) == BARS_PER_LANE
    assert detail.left_out > 21


def test_streams_of_a_device_are_lanes_and_neighbouring_kernels_one_bar():
    kernels = [
        (COMPUTE, 7, 1100, 1200),
        (COMPUTE, 7, 1200.5, 1300),
        (COMPUTE, 7, 1400, 1500),
        (COMMUNICATION, 20, 1450, 1700),
    ]
    kind, stream, start, end = (np.array(column) for column in zip(*kernels, strict=True))
    none = np.zeros(len(kernels), np.int64)
    trace = rank_trace(steps=[step(n, 1000 * n, 1000 * n + 1000) for n in range(2)])
    trace.device = DeviceActivity(
        words=[""],
        name=none,
        library=none,
        kind=kind,
        stream=stream,
        start_ns=(start * MS).astype(np.int64),
        end_ns=(end * MS).astype(np.int64),
        is_usual=none > 0,
    )
    bars = Timelines.collect(trace, RankClock()).steps[1][0].bars
    assert [(bar.lane, bar.kind, bar.start_ns, bar.end_ns) for bar in bars] == [
        ("activity", "idle", ns(1000), ns(1100)),
        ("activity", "compute", ns(1100), ns(1300)),
        ("activity", "idle", ns(1300), ns(1400)),
        ("activity", "compute", ns(1400), ns(1500)),
        ("activity", "blocked", ns(1500), ns(1700)),
        ("activity", "idle", ns(1700), ns(2000)),
        ("stream 7", "compute", ns(1100), ns(1300)),
        ("stream 7", "compute", ns(1400), ns(1500)),
        ("stream 20", "communication kernels", ns(1450), ns(1700)),
    ]


def test_a_sample_of_steps_is_spread_over_the_run_on_ranks_that_a_page_shows():
    steps = [step(n, 100 * n, 100 * n + 90) for n in range(100)]
    drawn = sorted(Timelines.collect(rank_trace(steps=steps), RankClock()).steps)
    assert len(drawn) >= SAMPLE
    assert (drawn[0], drawn[-1]) == (2, 99)
    assert max(b - a for a, b in itertools.pairwise(drawn)) <= 5
    beyond = Timelines.collect(rank_trace(RANKS, steps=steps), RankClock())
    assert len(beyond.steps) <= 2 * CANDIDATES + 1


def test_what_is_not_known_of_a_collective_is_said_and_a_barrier_has_no_size():
    barrier = sync("barrier", 1, 1, step=0, nbytes=0, tensors=0)
    unknown = sync("all_reduce", 3, 1, step=0, nbytes=0, tensors=0)
    trace = rank_trace(steps=[step(0, 0, 10)], comm=[barrier, unknown])
    bars = Timelines.collect(trace, RankClock()).steps[0][0].bars
    labels = {bar.kind: bar.label for bar in bars if bar.lane == "communication"}
    assert labels == {"barrier": "sync", "all_reduce": "size not recorded, sync"}


def test_a_collective_belongs_to_the_module_that_was_gathered_or_reduced():
    gathered = sync("all_gather", 1, 1, step=0, fetch=4)
    reduced = sync("reduce_scatter", 3, 1, step=0, flush=4)
    trace = rank_trace(steps=[step(0, 0, 10)], comm=[gathered, reduced])
    trace.fetches = [Fetch(id=4, kind="fetch", elements=1, start_ns=0, end_ns=1, module="layers.7")]
    trace.flushes = [Flush(id=4, stage=-1, elements=1, start_ns=0, end_ns=1, bucket=2)]
    bars = Timelines.collect(trace, RankClock()).steps[0][0].bars
    assert {bar.kind: bar.module for bar in bars if bar.lane == "communication"} == {
        "all_gather": "layers.7", "reduce_scatter": "bucket 2",
    }  # fmt: skip


def test_a_recording_without_steps_is_drawn_whole_unless_another_rank_has_steps():
    bare = rank_trace(1, comm=[sync("all_reduce", 3, 1), sync("barrier", 6, 2)])
    alone = Timelines.collect(bare, RankClock())
    assert alone.choose() == [("recording", WHOLE)]
    detail = alone.steps[WHOLE][1]
    assert (detail.start_ns, detail.end_ns) == (ns(3), ns(8))
    assert [b.kind for b in detail.bars if b.lane == "communication"] == ["all_reduce", "barrier"]
    both = summary(uneven(0), bare)[Timelines]
    assert WHOLE not in [number for _, number in both.choose()]
