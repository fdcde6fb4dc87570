"""A comparison as one HTML file without script and without network."""

from __future__ import annotations

from dsprof.diagnosis.comparison.model import Comparison
from dsprof.reports import content
from dsprof.reports.base import Options
from dsprof.reports.comparison import tables
from dsprof.reports.html.step_drawings import step_pair
from dsprof.reports.html.templates import NO_SCRIPT, environment, stylesheet


class HtmlRenderer:
    """Writes the page."""

    name = "html"
    suffix = ".html"

    def render(self, comparison: Comparison, /, options: Options) -> bytes:
        """Return the page as UTF-8."""
        sides = (comparison.before, comparison.after)
        steps = [side.typical_step for side in sides if side.typical_step is not None]
        bars = [content.typical_bar(step) for step in steps]
        page = (
            environment()
            .get_template("comparison.html.j2")
            .render(
                c=comparison,
                title=f"dsprof: {comparison.before.name} and {comparison.after.name}",
                sides=[(side, content.run_line(side.run)) for side in sides],
                steps=step_pair(*bars) if len(bars) == len(sides) else None,
                statistics=list(dict.fromkeys(step.statistic for step in steps)),
                sections=list(tables.sections(comparison)),
                csp=NO_SCRIPT,
                css=stylesheet(),
            )
        )
        return page.encode("utf-8", "replace")
