"""What changed between two runs, as a page, as terminal text, as JSON."""

from __future__ import annotations

from dsprof.comparison.model import Comparison
from dsprof.redaction import map_text, redact_text
from dsprof.reports.base import Options, Renderer, renderer_of
from dsprof.reports.comparison.html import HtmlRenderer
from dsprof.reports.comparison.text import TextRenderer
from dsprof.reports.json import JsonRenderer

RENDERERS: tuple[Renderer[Comparison], ...] = (TextRenderer(), HtmlRenderer(), JsonRenderer())


def render(
    comparison: Comparison, format_name: str, *, width: int | None = None, colour: bool = False
) -> bytes:
    """Render `comparison` with the renderer called `format_name`.

    Raises:
        DsprofError: there is no such format.
    """
    options = Options(width=width, colour=colour)
    shown = map_text(comparison, redact_text)
    return renderer_of(RENDERERS, format_name).render(shown, options)
