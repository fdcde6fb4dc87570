"""Figures as plotly's JSON."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import numpy as np

from dsprof.diagnosis.model import Bar, StepParts, Timeline
from dsprof.reports.content import step_bars
from dsprof.reports.html import figures
from tests.factories import diagnosis as factory
from tests.factories.steps_of_diagnosis import timeline


def traces(figure: figures.Figure) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(figure.spec)["data"]
    return found


def numbers(packed: dict[str, str] | list[float]) -> list[float]:
    """Numbers of a trace, which travel as base64 where they are many."""
    if isinstance(packed, list):
        return packed
    data = base64.b64decode(packed["bdata"])
    return [float(value) for value in np.frombuffer(data, np.dtype(packed["dtype"]))]


def test_a_timeline_draws_each_bar_where_it_belongs() -> None:
    step = Timeline(
        step=7,
        why="worst",
        duration_ns=9_000_000,
        bars=[
            Bar(rank=0, lane="phase", kind="forward", start_ns=0, end_ns=4_000_000),
            Bar(rank=0, lane="blocked", kind="reduce", start_ns=4_000_000, end_ns=6_500_000),
            Bar(rank=1, lane="phase", kind="forward", start_ns=0, end_ns=9_000_000),
        ],
    )
    forward, blocked = traces(figures.timeline(step))
    assert (forward["name"], forward["meta"]) == ("forward", "phase-forward")
    assert numbers(forward["x"]) == [4.0, 9.0]
    assert (blocked["name"], blocked["meta"]) == ("blocked", "exposed_comm")
    assert (numbers(blocked["base"]), numbers(blocked["x"])) == ([4.0], [2.5])
    assert blocked["hovertext"] == ["rank 0, reduce, 2.50 ms"]
    rows = [*forward["y"], *blocked["y"]]
    assert rows[0] < rows[2] < rows[1]  # rank 0 above its wait above rank 1


def test_too_many_bars_are_left_out_shortest_first_and_counted() -> None:
    bars = [
        Bar(rank=0, lane="communication", kind="all_reduce", start_ns=i * 10, end_ns=i * 10 + 1)
        for i in range(figures.MAX_BARS + 5)
    ]
    bars[-1] = Bar(rank=0, lane="communication", kind="broadcast", start_ns=0, end_ns=900)
    step = Timeline(step=0, why="median", duration_ns=900, bars=bars, left_out=10)
    figure = figures.timeline(step)
    assert sum(len(numbers(trace["x"])) for trace in traces(figure)) == figures.MAX_BARS
    assert "broadcast" in [trace["name"] for trace in traces(figure)]
    assert "15 bars merged or left out" in figure.caption


def test_an_unknown_lane_is_drawn_below_the_known_ones() -> None:
    step = timeline("worst", 3, 1)
    bars = [*step.bars, Bar(rank=0, lane="copy", kind="h2d", start_ns=0, end_ns=5)]
    drawn = traces(figures.timeline(msgspec.structs.replace(step, bars=bars)))
    assert drawn[-1]["name"] == "h2d"
    assert min(drawn[-1]["y"]) > max(y for trace in drawn[:-1] for y in trace["y"])


def test_step_times_leave_a_gap_where_nothing_was_measured() -> None:
    rows = [_step(0, idle_ns=None), _step(1, idle_ns=2_000_000)]
    drawn = {trace["name"]: trace for trace in traces(figures.step_times(step_bars(rows, 10)))}
    idle = numbers(drawn["idle"]["y"])
    assert np.isnan(idle[0])
    assert idle[1] == 2.0
    assert "copies" not in drawn
    assert drawn["slowest rank"]["x"] == ["0", "1"]


def test_the_colours_of_every_trace_are_in_the_style_sheet() -> None:
    from dsprof.reports.html.templates import asset

    made = factory.diagnosis(2, 4)
    shown = [figures.step_times(step_bars(made.steps.rows, 10)), *figures.timelines(made)]
    memory = figures.memory(made.memory)
    assert memory is not None
    names = {trace["meta"] for figure in [*shown, memory] for trace in traces(figure)}
    assert [name for name in names if f"--{name}:" not in asset("report.css")] == []


def test_memory_without_samples_is_no_figure() -> None:
    bare = [msgspec.structs.replace(rank, steps=[]) for rank in factory.diagnosis().memory]
    assert figures.memory(bare) is None


def test_memory_of_many_ranks_says_which_are_left_out() -> None:
    figure = figures.memory(factory.diagnosis(20, 3).memory)
    assert figure is not None
    assert len(traces(figure)) == figures.MAX_MEMORY_RANKS
    assert "4 ranks are in the table only" in figure.caption
    assert len(figure.table.rows) == 20


def _step(number: int, idle_ns: int | None) -> StepParts:
    return StepParts(
        step=number,
        compute_ns=5_000_000,
        exposed_comm_ns=1_000_000,
        copies_ns=None,
        idle_ns=idle_ns,
        other_ns=0,
        total_ns=6_000_000 + (idle_ns or 0),
        slowest_total_ns=9_000_000,
    )
