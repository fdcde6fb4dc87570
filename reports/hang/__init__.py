"""What is known of a hang, as a page, as terminal text, as JSON."""

from __future__ import annotations

from dsprof.analysis.run.hang_model import HangReport
from dsprof.redaction import map_text, redact_text
from dsprof.reports.base import Options, Renderer, renderer_of
from dsprof.reports.hang.html import HtmlRenderer
from dsprof.reports.hang.text import TextRenderer
from dsprof.reports.json import JsonRenderer

RENDERERS: tuple[Renderer[HangReport], ...] = (TextRenderer(), HtmlRenderer(), JsonRenderer())


def render(
    report: HangReport, format_name: str, *, width: int | None = None, colour: bool = False
) -> bytes:
    """Render `report` with the renderer called `format_name`.

    Raises:
        DsprofError: there is no such format.
    """
    options = Options(width=width, colour=colour)
    shown = map_text(report, redact_text)
    return renderer_of(RENDERERS, format_name).render(shown, options)
