"""The list of a run's steps, each with the address of its details; without a script."""

from __future__ import annotations

from collections.abc import Sequence

from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.steps import StepParts
from dsprof.reports import content
from dsprof.reports.base import Link
from dsprof.reports.html.step_drawings import step_columns
from dsprof.reports.html.templates import rendered


def steps_page(diagnosis: Diagnosis, rows: Sequence[StepParts], links: Sequence[Link]) -> bytes:
    """Return the page of these steps, which links to the pages beside it."""
    bars = content.step_bars(rows, max(len(rows), 1))
    measured = {part.label for bar in bars for part in bar.parts if part.ns is not None}
    return rendered(
        "steps_page.html.j2",
        title="dsprof: steps",
        facts=content.run_line(diagnosis.run, is_recorded=diagnosis.quality.is_recorded),
        bars=bars,
        parts=[label for label in content.PARTS.values() if label in measured],
        drawing_of_steps=step_columns(bars) if len(bars) > 1 else None,
        links=links,
    )
