"""The section on a run that is stuck or crashed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.run.hang_model import HangReport
from dsprof.analysis.run.hang_verdict import hang_of, report_of
from dsprof.analysis.summary import RunSummary

_RULE = "stuck-collective"


def hang_report(summary: RunSummary, thresholds: Mapping[str, Any]) -> HangReport | None:
    """Return what is known of a hang or crash, by the thresholds of its rule; None: nothing is."""
    endings, flights = summary[Endings], summary[FlightRecorders]
    given = thresholds.get(_RULE)
    limits = (round(given.waited_s * 1e9), given.unfinished) if given else ()
    report = report_of(hang_of(endings, flights, *limits), endings)
    return None if report.is_healthy else report
