from __future__ import annotations

import numpy as np

from dsprof.analysis.aggregates.timelines import BARS_PER_LANE, RANKS, Timelines
from dsprof.analysis.summary import RankClock
from dsprof.trace.device_activity import COMMUNICATION, COMPUTE, DeviceActivity
from tests.factories.trace import (
    MS,
    captured,
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
    assert all(len(timelines.steps[number]) == 2 for number in chosen.values())
    assert timelines.missing() == {}


def test_the_choice_is_by_the_mean_over_ranks():
    timelines = summary(*disagreeing())[Timelines]
    assert timelines.choose() == [("worst", 5), ("median", 3), ("first", 2)]
    assert {step for steps in timelines.missing().values() for step in steps} <= {2, 3, 5}
    assert timelines.missing()


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
    assert bars["communication"].label == "1.00 MiB, world, sync"
    assert (bars["blocked"].start_ns, bars["blocked"].end_ns) == (ns(82), ns(87))
    assert [bar.kind for bar in detail.bars if bar.lane == "phase"] == [
        "forward",
        "backward",
        "step",
    ]


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
    assert detail.left_out == 2 * 21


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
        ("stream 7", "compute", ns(1100), ns(1300)),
        ("stream 7", "compute", ns(1400), ns(1500)),
        ("stream 20", "communication kernels", ns(1450), ns(1700)),
    ]
