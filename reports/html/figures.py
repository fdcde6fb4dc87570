"""Figures that a reader can zoom, as plotly's JSON.

A trace names its colour in `meta`; the page's script takes it from the style sheet, so that a
figure follows light and dark. Text from a run is escaped, because plotly reads markup in labels.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsprof.diagnosis.model import Bar, Timeline
from dsprof.findings import formatting as fmt
from dsprof.reports.html.timeline_drawing import (
    LANES,
    Row,
    by_kind,
    lane_places,
    longest_bars,
)


def timeline(step: Timeline) -> str:
    """Return {data, layout} of one step, a group of lanes a rank."""
    import plotly.graph_objects as go

    kept = longest_bars(step)
    rows = {row: number + 0.6 * rank for row, (number, rank) in lane_places(kept).items()}
    figure = go.Figure()
    for key, bars in by_kind(kept).items():
        figure.add_bar(
            orientation="h",
            base=_ms([bar.start_ns for bar in bars]),
            x=_ms([bar.end_ns - bar.start_ns for bar in bars]),
            y=[rows[bar.rank, bar.lane] for bar in bars],
            width=0.82,
            name=_escaped(key.label),
            meta=key.colour,
            hovertext=[_hover(bar) for bar in bars],
            hoverinfo="text",
            opacity=0.85,
        )
    figure.update_layout(barmode="overlay", xaxis_title="ms from the start of the step")
    figure.update_xaxes(range=[0, step.duration_ns / 1e6])
    figure.update_yaxes(
        tickvals=list(rows.values()),
        ticktext=[_lane_label(row, rows) for row in rows],
        autorange="reversed",
        fixedrange=True,
        showgrid=False,
        zeroline=False,
    )
    figure.layout.template = None  # plotly's own is 6.5 kB and not our style
    return str(figure.to_json())


def _lane_label(row: Row, rows: dict[Row, float]) -> str:
    rank, lane = row
    name = _escaped(LANES.get(lane, lane))
    is_first = next(other for other in rows if other[0] == rank) == row
    return f"<b>rank {rank}</b> {name}" if is_first else name


def _hover(bar: Bar) -> str:
    words = [f"rank {bar.rank}", bar.kind, fmt.duration(bar.end_ns - bar.start_ns), bar.label]
    return _escaped(", ".join(word for word in words if word))


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)


def _ms(values_ns: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Milliseconds; single precision halves the page and keeps seven figures."""
    return np.array([value / 1e6 for value in values_ns], np.float32)
