"""Timelines as plotly's JSON."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import numpy as np

from dsprof.diagnosis.model import Bar, Timeline
from dsprof.reports.html import figures
from dsprof.reports.html.timeline_drawing import MAX_BARS
from tests.factories.steps_of_diagnosis import timeline


def traces(spec: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(spec)["data"]
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


def test_the_first_lane_of_a_rank_names_it() -> None:
    labels = json.loads(figures.timeline(timeline("worst", 3, 2)))["layout"]["yaxis"]["ticktext"]
    assert labels == [
        "<b>rank 0</b> phases", "communication", "blocked",
        "<b>rank 1</b> phases", "communication", "blocked",
    ]  # fmt: skip


def test_of_too_many_bars_the_shortest_are_left_out() -> None:
    bars = [
        Bar(rank=0, lane="communication", kind="all_reduce", start_ns=i * 10, end_ns=i * 10 + 1)
        for i in range(MAX_BARS + 5)
    ]
    bars[-1] = Bar(rank=0, lane="communication", kind="broadcast", start_ns=0, end_ns=900)
    step = Timeline(step=0, why="median", duration_ns=900, bars=bars, left_out=10)
    drawn = traces(figures.timeline(step))
    assert sum(len(numbers(trace["x"])) for trace in drawn) == MAX_BARS
    assert "broadcast" in [trace["name"] for trace in drawn]


def test_an_unknown_lane_is_drawn_below_the_known_ones() -> None:
    step = timeline("worst", 3, 1)
    bars = [*step.bars, Bar(rank=0, lane="stream 7", kind="gemm", start_ns=0, end_ns=5)]
    drawn = traces(figures.timeline(msgspec.structs.replace(step, bars=bars)))
    assert drawn[-1]["name"] == "gemm"
    assert min(drawn[-1]["y"]) > max(y for trace in drawn[:-1] for y in trace["y"])
