"""The first screen of the report for a notebook: no script, and styles that stay inside."""

from __future__ import annotations

from dsprof.diagnosis.model import Diagnosis
from dsprof.findings.finding import Status
from dsprof.reports import content
from dsprof.reports.html.templates import environment


def first_screen(diagnosis: Diagnosis) -> str:
    """Return headline, findings and step bar as a fragment of HTML."""
    return (
        environment()
        .get_template("notebook.html.j2")
        .render(
            d=diagnosis,
            facts=content.run_line(diagnosis.run, is_recorded=diagnosis.quality.is_recorded),
            failed=content.with_status(diagnosis, Status.FAIL),
            step=content.typical_step(diagnosis.steps),
        )
    )
