"""The diagnosis as one HTML file that needs no network and, but for its figures, no script."""

from __future__ import annotations

import base64
import hashlib
from functools import cache

from dsprof.diagnosis.model import Diagnosis, to_json
from dsprof.reports import content, tables
from dsprof.reports.base import Options, Renderer
from dsprof.reports.glossary import GLOSSARY
from dsprof.reports.html import waits
from dsprof.reports.html.memory_drawing import MAX_RANKS
from dsprof.reports.html.templates import environment, packed, script, stylesheet
from dsprof.reports.html.view import View


class HtmlRenderer:
    """Writes the page; plotly.js rides along, compressed, when there is a figure to draw."""

    name = "html"
    suffix = ".html"

    def render(self, diagnosis: Diagnosis, options: Options) -> bytes:
        """Return the page as UTF-8."""
        view = View(diagnosis, is_static=options.is_static)
        code = script()
        page = (
            environment()
            .get_template("report.html.j2")
            .render(
                d=diagnosis,
                view=view,
                links=options.links,
                asked_and_sent=diagnosis.asked_and_sent,
                waits=waits.rows(
                    diagnosis.waits, diagnosis.arrivals, content.measured_steps(diagnosis.steps)
                ),
                max_memory_ranks=MAX_RANKS,
                mean_note=content.mean_note(diagnosis.steps),
                glossary=sorted(GLOSSARY.items()),
                tables=tables,
                sections=[one for one in tables.SECTIONS if one.rows(diagnosis)],
                csp=_content_security_policy(code),
                css=stylesheet(),
                script=code,
                plotlyjs=_plotlyjs(options.plotlyjs) if any(t.spec for t in view.timelines) else "",
                facts=packed(to_json(diagnosis)),
            )
        )
        return page.encode("utf-8", "replace")


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
    return _packed_plotlyjs() if bundle is None else packed(bundle)


@cache
def _packed_plotlyjs() -> str:
    from plotly.offline import get_plotlyjs

    return packed(get_plotlyjs().encode())


RENDERER: Renderer[Diagnosis] = HtmlRenderer()
