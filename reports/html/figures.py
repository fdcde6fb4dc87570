"""Figures of the page, as plotly's JSON.

A trace names its colour in `meta`; the page's script takes it from the style sheet, so that a
figure follows light and dark. Text from a run is escaped, because plotly reads markup in labels.
"""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsprof.diagnosis.model import Bar, Diagnosis, RankMemory, Timeline
from dsprof.findings import formatting as fmt
from dsprof.findings.finding import Table
from dsprof.reports import tables
from dsprof.reports.content import PARTS, StepBar

MAX_BARS = 3000
"""Bars of one figure: beyond, drawing and zooming become slow."""

MAX_MEMORY_RANKS = 16
"""Ranks of the memory figure: more lines cannot be distinguished."""

LANES = {"phase": "phase", "communication": "comm", "blocked": "blocked"}
_PHASES = ("forward", "backward", "step")
_SERIES = 6


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure, what it shows in words, and its numbers."""

    title: str
    caption: str
    spec: str  # JSON of plotly's {data, layout}
    height_px: int
    legend: tuple[tuple[str, str], ...]  # label, colour name
    table: Table


def step_times(bars: Sequence[StepBar]) -> Figure:
    """Step time over the run, split into parts, with the fastest and the slowest rank."""
    import plotly.graph_objects as go

    figure = go.Figure()
    labels = [bar.label for bar in bars]
    for index, (key, label) in enumerate(PARTS.items()):
        values = [bar.parts[index].ns for bar in bars]
        if any(values):
            figure.add_bar(x=labels, y=_ms(values), name=label, meta=key)
    legend = _legend(figure)
    for name, totals, symbol in (
        ("fastest rank", [bar.fastest_ns for bar in bars], "line-ew-open"),
        ("slowest rank", [bar.slowest_ns for bar in bars], "triangle-up-open"),
    ):
        if any(totals):
            marks = {"symbol": symbol, "size": 6}
            figure.add_scatter(
                x=labels, y=_ms(totals), name=name, meta="ink", mode="markers", marker=marks
            )
    figure.update_layout(barmode="stack", bargap=0.15, yaxis_title="ms", xaxis_title="step")
    figure.update_xaxes(type="category", nticks=12, range=[-0.6, len(bars) - 0.4], showgrid=False)
    figure.update_yaxes(hoverformat=".3~f")
    return Figure(
        title="Step time",
        caption="Milliseconds of each step, mean over the ranks; marks for the fastest rank (line) "
        "and the slowest (triangle).",
        spec=_spec(figure),
        height_px=340,
        legend=legend,
        table=tables.steps(bars),
    )


def timeline(step: Timeline) -> Figure:
    """One step, a group of lanes a rank."""
    import plotly.graph_objects as go

    kept = sorted(step.bars, key=lambda bar: bar.start_ns - bar.end_ns)[:MAX_BARS]
    left_out = step.left_out + len(step.bars) - len(kept)
    rows = _lane_rows(kept)
    figure = go.Figure()
    for (kind, colour), bars in _by_kind(kept).items():
        figure.add_bar(
            orientation="h",
            base=_ms([bar.start_ns for bar in bars]),
            x=_ms([bar.end_ns - bar.start_ns for bar in bars]),
            y=[rows[bar.rank, bar.lane] for bar in bars],
            width=0.82,
            name=_escaped(kind),
            meta=colour,
            hovertext=[_hover(bar) for bar in bars],
            hoverinfo="text",
            opacity=0.85,
        )
    figure.update_layout(barmode="overlay", xaxis_title="ms from the start of the step")
    figure.update_xaxes(range=[0, step.duration_ns / 1e6])
    figure.update_yaxes(
        tickvals=list(rows.values()),
        ticktext=[_lane_label(rank, lane) for rank, lane in rows],
        autorange="reversed",
        fixedrange=True,
        showgrid=False,
        zeroline=False,
    )
    caption = f"Step {step.step}, the {step.why} one: {fmt.duration(step.duration_ns)}."
    if left_out:
        caption += f" {fmt.plural(left_out, 'bar')} merged or left out."
    return Figure(
        title=f"{step.why.capitalize()} step",
        caption=caption,
        spec=_spec(figure),
        height_px=80 + 20 * len(rows),
        legend=_legend(figure),
        table=tables.timeline(step),
    )


def memory(ranks: Sequence[RankMemory]) -> Figure | None:
    """Memory at the step ends, one line a rank; None where no samples were taken."""
    import plotly.graph_objects as go

    shown = [rank for rank in ranks if rank.steps][:MAX_MEMORY_RANKS]
    if not shown:
        return None
    figure = go.Figure()
    for index, (name, label) in enumerate(
        (("rss", "RSS"), ("allocated", "allocated"), ("reserved", "reserved"))
    ):
        for rank in (rank for rank in shown if getattr(rank, f"{name}_bytes")):
            figure.add_scatter(
                x=rank.steps,
                y=np.array(getattr(rank, f"{name}_bytes"), np.float64) / 2**30,
                name=label,
                meta=f"series-{index + 1}",
                mode="lines",
                line_width=1.5,
                hovertemplate=f"rank {rank.rank}: %{{y:.3~f}} GiB {label}<extra></extra>",
            )
    figure.update_layout(xaxis_title="step", yaxis_title="GiB")
    figure.update_yaxes(rangemode="tozero")
    caption = "At the end of each step, one line per rank."
    if len(shown) < len(ranks):
        caption += f" {fmt.count(len(ranks) - len(shown))} ranks are in the table only."
    return Figure(
        title="Memory over the run",
        caption=caption,
        spec=_spec(figure),
        height_px=300,
        legend=_legend(figure),
        table=tables.memory(ranks),
    )


def timelines(diagnosis: Diagnosis) -> Iterator[Figure]:
    """Every step in detail that holds a bar."""
    return (timeline(step) for step in diagnosis.timelines if step.bars)


def _lane_rows(bars: Sequence[Bar]) -> dict[tuple[int, str], float]:
    """Vertical place of each (rank, lane): lanes of a rank touch, ranks stand apart."""
    lanes = sorted({(b.rank, b.lane) for b in bars}, key=lambda row: (row[0], _lane_order(row[1])))
    ranks = sorted({rank for rank, _ in lanes})
    return {lane: index + 0.6 * ranks.index(lane[0]) for index, lane in enumerate(lanes)}


def _lane_order(lane: str) -> int:
    return list(LANES).index(lane) if lane in LANES else len(LANES)


def _lane_label(rank: int, lane: str) -> str:
    name = _escaped(LANES.get(lane, lane))
    return f"<b>rank {rank}</b>  {name}" if lane == "phase" else name


def _by_kind(bars: Sequence[Bar]) -> dict[tuple[str, str], list[Bar]]:
    """Bars by (legend name, colour name): phases and waits have theirs, operations take turns."""
    operations = sorted({bar.kind for bar in bars if bar.lane == "communication"})
    groups: dict[tuple[str, str], list[Bar]] = defaultdict(list)
    for bar in sorted(bars, key=lambda bar: (_lane_order(bar.lane), bar.rank, bar.start_ns)):
        if bar.lane == "blocked":
            key = ("blocked", "exposed_comm")
        elif bar.lane == "communication":
            key = (bar.kind, f"series-{operations.index(bar.kind) % _SERIES + 1}")
        else:
            key = (bar.kind, f"phase-{bar.kind}" if bar.kind in _PHASES else "other")
        groups[key].append(bar)
    return groups


def _hover(bar: Bar) -> str:
    words = [f"rank {bar.rank}", bar.kind, fmt.duration(bar.end_ns - bar.start_ns), bar.label]
    return _escaped(", ".join(word for word in words if word))


def _legend(figure: Any) -> tuple[tuple[str, str], ...]:
    """Names and colours of the traces so far, each once."""
    return tuple(dict.fromkeys((html.unescape(trace.name), trace.meta) for trace in figure.data))


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)


def _ms(values_ns: Sequence[int | None]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Milliseconds; single precision halves the page and keeps seven figures."""
    return np.array([np.nan if value is None else value / 1e6 for value in values_ns], np.float32)


def _spec(figure: Any) -> str:
    figure.layout.template = None  # plotly's own is 6.5 kB and not our style
    return str(figure.to_json())
