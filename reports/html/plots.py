"""Interactive figures of a run for notebooks, drawn by plotly."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from plotly import graph_objects as go

from dsprof.diagnosis.model import Diagnosis

_PARTS = (
    ("compute", "compute", "#397aa2"),
    ("exposed_comm", "exposed communication", "#c64d25"),
    ("copies", "copies", "#6b2c62"),
    ("idle", "idle", "#c99a1f"),
    ("other", "other", "#a3a9b1"),
)
_MS, _GIB, _GB = 1e6, 2**30, 1e9


def _steps(diagnosis: Diagnosis) -> go.Figure:
    """Stack the parts of each step, mean over the ranks."""
    rows = diagnosis.steps.rows
    numbers = [row.step for row in rows]
    figure = go.Figure(layout={"barmode": "stack", "xaxis_title": "step", "yaxis_title": "ms"})
    for name, label, colour in _PARTS:
        values = [getattr(row, f"{name}_ns") for row in rows]
        if any(values):
            heights = [None if ns is None else ns / _MS for ns in values]
            figure.add_bar(x=numbers, y=heights, name=label, marker_color=colour)
    return figure


def _ranks(diagnosis: Diagnosis) -> go.Figure:
    """Colour ranks by steps by the time outside communication waits."""
    found = diagnosis.step_map
    busy = [
        [(total - max(exposed, 0)) / _MS if total >= 0 else None for total, exposed in pairs]
        for pairs in map(zip, found.total_ns, found.exposed_ns)
    ]
    return go.Figure(
        go.Heatmap(
            x=[first for first, _ in found.steps],
            y=[f"rank {first}" for first, _ in found.ranks],
            z=busy,
            colorbar_title="ms",
            colorscale="Oranges",
        ),
        layout={"xaxis_title": "step"},
    )


def _memory(diagnosis: Diagnosis) -> go.Figure:
    """Draw the memory of each rank at the ends of steps."""
    figure = go.Figure(layout={"xaxis_title": "step", "yaxis_title": "GiB"})
    kinds = {"rss_bytes": "host", "allocated_bytes": "allocated", "reserved_bytes": "reserved"}
    for rank in diagnosis.memory:
        for name, label in kinds.items():
            values = [nbytes / _GIB if nbytes >= 0 else None for nbytes in getattr(rank, name)]
            if any(values):
                figure.add_scatter(x=rank.steps, y=values, name=f"rank {rank.rank}, {label}")
    return figure


def _bandwidth(diagnosis: Diagnosis) -> go.Figure:
    """Draw the bus bandwidth of collectives by their size, and what is expected."""
    axes = {"xaxis_title": "bytes", "xaxis_type": "log", "yaxis_title": "GB/s"}
    figure = go.Figure(layout=axes)
    for op in dict.fromkeys(row.op for row in diagnosis.transfers):
        rows = sorted((r for r in diagnosis.transfers if r.op == op), key=lambda row: row.bytes)
        sizes = [row.bytes for row in rows]
        speeds = [row.busbw / _GB for row in rows]
        figure.add_scatter(x=sizes, y=speeds, name=op, mode="lines+markers")
    for curve in diagnosis.expected_curves:
        speeds = [busbw / _GB for busbw in curve.busbw]
        name = f"{curve.op}, expected: {curve.source}"
        figure.add_scatter(x=curve.bytes, y=speeds, name=name, mode="lines", line_dash="dash")
    return figure


PLOTS: Mapping[str, Callable[[Diagnosis], go.Figure]] = {
    "steps": _steps,
    "ranks": _ranks,
    "memory": _memory,
    "bandwidth": _bandwidth,
}
"""What can be drawn, by its name."""
