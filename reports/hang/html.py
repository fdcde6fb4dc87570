"""A hang as one HTML file without script and without network."""

from __future__ import annotations

from dsprof._version import __version__
from dsprof.analysis.hang.model import HangReport
from dsprof.reports import tables
from dsprof.reports.base import Options
from dsprof.reports.html.hangs import picture
from dsprof.reports.html.templates import NO_SCRIPT, environment, stylesheet


class HtmlRenderer:
    """Writes the page."""

    name = "html"
    suffix = ".html"

    def render(self, report: HangReport, /, options: Options) -> bytes:
        """Return the page as UTF-8."""
        page = (
            environment()
            .get_template("hang_page.html.j2")
            .render(
                hang=report,
                picture=picture(report),
                version=__version__,
                title="dsprof: hang",
                tables=tables,
                csp=NO_SCRIPT,
                css=stylesheet(),
            )
        )
        return page.encode("utf-8", "replace")
