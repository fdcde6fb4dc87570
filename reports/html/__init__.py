"""The diagnosis as one HTML file that needs no network and, but for its timeline, no script."""

from __future__ import annotations

import base64
import hashlib

from dsprof.diagnosis.document import to_json
from dsprof.diagnosis.model import Diagnosis
from dsprof.findings.glossary import GLOSSARY
from dsprof.reports import content, tables
from dsprof.reports.base import Format, Options, Renderer
from dsprof.reports.html import waits
from dsprof.reports.html.memory_drawing import MAX_RANKS
from dsprof.reports.html.templates import packed, rendered, script
from dsprof.reports.html.view import View


def _page(diagnosis: Diagnosis, options: Options) -> bytes:
    """Return the page; the report rides along as JSON, compressed, and its script reads it."""
    view = View(diagnosis, is_static=options.is_static)
    code = script(view.is_live)
    return rendered(
        "report.html.j2",
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
        script=code,
        facts=packed(to_json(view.facts)),
    )


def _content_security_policy(script: str) -> str:
    """Allow our own script by its hash; nothing may be fetched. Drawings set their own colours."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


RENDERER: Renderer[Diagnosis] = Format("html", ".html", _page)
