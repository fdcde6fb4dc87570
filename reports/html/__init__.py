"""The diagnosis as one HTML file that needs no network and, but for its figures, no script."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Iterator
from functools import cache

from dsprof.diagnosis.model import Diagnosis
from dsprof.findings.finding import Finding, Status
from dsprof.reports import content, tables
from dsprof.reports.base import Options, Renderer
from dsprof.reports.glossary import GLOSSARY
from dsprof.reports.html import figures, hangs, waits
from dsprof.reports.html.templates import asset, environment

MAX_STEP_BARS = 120

_CHECKS = {
    Status.PASS: "Passed",
    Status.NOT_APPLICABLE: "Not applicable",
    Status.UNKNOWN: "Unknown",
    Status.ERROR: "Failed to run",
}


class HtmlRenderer:
    """Writes the page; plotly.js rides along, compressed, when there is a figure to draw."""

    name = "html"
    suffix = ".html"

    def render(self, diagnosis: Diagnosis, options: Options) -> bytes:
        """Return the page as UTF-8."""
        template = environment().get_template("report.html.j2")
        script = asset("report.js")
        bars = content.step_bars(diagnosis.steps.rows, MAX_STEP_BARS)
        drawn = _Figures(diagnosis, bars)
        page = template.render(
            d=diagnosis,
            step=content.typical_step(diagnosis.steps),
            facts=content.run_line(diagnosis.run),
            quality=list(content.quality_lines(diagnosis)),
            failed=content.with_status(diagnosis, Status.FAIL),
            notes=content.with_status(diagnosis, Status.INFO),
            checks=_checks(diagnosis),
            asked_and_sent=diagnosis.asked_and_sent,
            bars=bars,
            waits=waits.rows(
                diagnosis.waits, diagnosis.arrivals, content.measured_steps(diagnosis.steps)
            ),
            figures=drawn,
            hang_picture=hangs.picture(diagnosis.hang) if diagnosis.hang else None,
            rules={about.rule: about for about in diagnosis.rules},
            glossary=sorted(GLOSSARY.items()),
            tables=tables,
            csp=_content_security_policy(script),
            css=asset("report.css"),
            script=script,
            plotlyjs=_plotlyjs(options.plotlyjs) if drawn.any else "",
        )
        return page.encode("utf-8", "replace")


class _Figures:
    """The figures of one page."""

    def __init__(self, diagnosis: Diagnosis, bars: list[content.StepBar]) -> None:
        self.steps = figures.step_times(bars) if bars else None
        self.timelines = list(figures.timelines(diagnosis))
        self.memory = figures.memory(diagnosis.memory)

    @property
    def any(self) -> bool:
        """Whether plotly.js is needed."""
        return bool(self.steps or self.timelines or self.memory)


def _checks(diagnosis: Diagnosis) -> Iterator[tuple[str, list[Finding]]]:
    for status, label in _CHECKS.items():
        found = content.with_status(diagnosis, status)
        if found:
            yield label, found


def _content_security_policy(script: str) -> str:
    """Allow our own script by its hash and plotly's as a blob; nothing may be fetched.

    plotly sets styles on the elements it draws, hence the inline styles; it needs no eval for the
    kinds of trace that we use.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}' blob:; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _plotlyjs(bundle: bytes | None) -> str:
    """plotly.js as gzip in base64: a third of its size."""
    return _packed_plotlyjs() if bundle is None else _packed(bundle)


@cache
def _packed_plotlyjs() -> str:
    from plotly.offline import get_plotlyjs

    return _packed(get_plotlyjs().encode())


def _packed(source: bytes) -> str:
    return base64.b64encode(gzip.compress(source, 9, mtime=0)).decode()


RENDERER: Renderer[Diagnosis] = HtmlRenderer()
