"""The dashboards as code: `python deploy/grafana/dashboards.py` writes their JSON beside it.

A panel is a row of a table: what it shows, in which unit, and the queries. The builders of
grafana-foundation-sdk make the JSON, so that its types say what Grafana takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

_HERE = '{instance=~"$instance"}'
_DATA = DataSourceRef(type_val="prometheus", uid="$datasource")


class Panel(NamedTuple):
    """One graph; `queries` are expressions by the legend of their lines."""

    title: str
    text: str
    unit: str
    queries: Mapping[str, str]


def _rate(counter: str, by: str = "") -> str:
    """Return the increase of a counter in a second, over all its series, or by a label."""
    each = f"rate({counter}{_HERE}[$__rate_interval])"
    return f"sum by ({by}) ({each})" if by else f"sum({each})"


def _mean_step(by: str = "") -> str:
    return f"{_rate('dsprof_step_seconds_sum', by)} / {_rate('dsprof_step_seconds_count', by)}"


def _ten_largest(gauge: str) -> Mapping[str, str]:
    return {"{{host}} {{rank}}": f"topk(10, {gauge}{_HERE})"}


STEP_TIME = Panel(
    "Step time",
    "Length of the steps of all ranks.",
    "s",
    {
        "mean": _mean_step(),
        "95 %": f"histogram_quantile(0.95, {_rate('dsprof_step_seconds_bucket', 'le')})",
    },
)
EXPOSED = Panel(
    "Exposed communication",
    "Share of recent steps in which ranks wait for communication and do nothing else.",
    "percentunit",
    {"exposed": f"dsprof_exposed_share{_HERE}"},
)
IN_FLIGHT = Panel(
    "Oldest collective in flight",
    "Time since the rank called a collective that has not ended.",
    "s",
    _ten_largest("dsprof_in_flight_seconds"),
)
LATENESS = Panel(
    "Late ranks",
    "Time that the others wait for a rank in each step.",
    "s",
    _ten_largest("dsprof_rank_lateness_seconds"),
)
STEP = Panel(
    "Step", "The last step that a rank completed.", "none", {"step": f"dsprof_step{_HERE}"}
)

DASHBOARDS: Mapping[str, Sequence[Panel]] = {
    "overview": (
        STEP_TIME,
        EXPOSED,
        Panel(
            "Bytes by operation",
            "Bytes of collectives of all ranks, by operation.",
            "Bps",
            {"{{op}}": _rate("dsprof_bytes_total", "op")},
        ),
        Panel(
            "Findings",
            "Findings of the run so far, by severity.",
            "none",
            {"{{severity}}": f"sum by (severity) (dsprof_findings{_HERE})"},
        ),
        LATENESS,
        IN_FLIGHT,
        Panel(
            "Bucket flushes",
            "Flushes of gradient buckets, by cause.",
            "ops",
            {"{{cause}}": _rate("dsprof_flushes_total", "cause")},
        ),
        STEP,
    ),
    "ranks": (
        LATENESS,
        Panel(
            "Straggler",
            "Time that the others wait for the straggler in each step.",
            "s",
            {"lateness": f"dsprof_straggler_lateness_seconds{_HERE}"},
        ),
        Panel(
            "Exposed communication by host",
            "Seconds that ranks of a host wait, in each second.",
            "none",
            {"{{host}}": _rate("dsprof_exposed_seconds_total", "host")},
        ),
        Panel(
            "Step time by host",
            "Mean length of the steps of the ranks of a host.",
            "s",
            {"{{host}}": _mean_step("host")},
        ),
    ),
    "memory": (
        Panel(
            "Host memory",
            "Resident memory of ranks; with more than 64 ranks, the largest of each host.",
            "bytes",
            _ten_largest("dsprof_host_memory_bytes"),
        ),
        Panel(
            "Device memory in use",
            "Memory that the allocator has given to tensors.",
            "bytes",
            _ten_largest("dsprof_device_allocated_bytes"),
        ),
        Panel(
            "Device memory reserved",
            "Memory that the allocator has reserved.",
            "bytes",
            _ten_largest("dsprof_device_reserved_bytes"),
        ),
        Panel(
            "Device memory stuck",
            "Free memory in segments that are partly used; only smaller requests can use it.",
            "bytes",
            _ten_largest("dsprof_device_stuck_bytes"),
        ),
    ),
    "hang": (
        Panel(
            "Stuck",
            "1 if no step ends and the cause is known.",
            "none",
            {"stuck": f"dsprof_stuck{_HERE}"},
        ),
        IN_FLIGHT,
        Panel(
            "Silent ranks",
            "Ranks that have shown no sign of life for 10 seconds, or are gone; with more than 64 "
            "ranks, hosts that have such a rank.",
            "none",
            {"silent": f"sum(dsprof_rank_silent{_HERE})"},
        ),
        STEP,
    ),
}


def built() -> Iterator[tuple[str, str]]:
    """Yield the name of each file and its content."""
    for name, panels in DASHBOARDS.items():
        board = _board(name, panels)
        yield f"{name}.json", JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


def _board(name: str, panels: Sequence[Panel]) -> Dashboard:
    board = (
        Dashboard(f"dsprof: {name}")
        .uid(f"dsprof-{name}")
        .tags(["dsprof"])
        .refresh("30s")
        .time("now-1h", "now")
        .with_variable(DatasourceVariable("datasource").type("prometheus"))
        .with_variable(
            QueryVariable("instance")
            .query("label_values(dsprof_run_info, instance)")
            .datasource(_DATA)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .include_all(True)
            .multi(True)
        )
    )
    for panel in panels:
        board = board.with_panel(_panel(panel))
    return board


def _panel(panel: Panel) -> TimeSeries:
    drawn = TimeSeries().title(panel.title).description(panel.text).unit(panel.unit).min(0)
    drawn = drawn.datasource(_DATA).span(12).height(8)
    for place, (legend, expression) in enumerate(panel.queries.items()):
        drawn = drawn.with_target(
            Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + place))
        )
    return drawn


if __name__ == "__main__":
    for file, content in built():
        (Path(__file__).parent / file).write_text(content)
