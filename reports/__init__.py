"""Reports: a diagnosis as a page, as terminal text, as JSON.

`RENDERERS` is the registry: one more format is one more file and one more line. What is heavy
(plotly, jinja2) is imported by the renderer that needs it, when it renders.
"""

from __future__ import annotations

from dsprof.diagnosis.model import Diagnosis
from dsprof.redaction import map_text, redact_text
from dsprof.reports.base import Options, Renderer, renderer_of
from dsprof.reports.html import HtmlRenderer
from dsprof.reports.json import JsonRenderer
from dsprof.reports.text import TextRenderer
from dsprof.reports.write import write_whole

__all__ = ["RENDERERS", "Options", "Renderer", "render", "write_whole"]

RENDERERS: tuple[Renderer[Diagnosis], ...] = (HtmlRenderer(), TextRenderer(), JsonRenderer())


def render(
    diagnosis: Diagnosis,
    format_name: str,
    *,
    plotlyjs: bytes | None = None,
    width: int | None = None,
    colour: bool = False,
) -> bytes:
    """Render `diagnosis` with the renderer called `format_name`.

    Raises:
        DsprofError: there is no such format.
    """
    options = Options(plotlyjs=plotlyjs, width=width, colour=colour)
    shown = map_text(diagnosis, redact_text)  # it quotes logs and files of other programs
    return renderer_of(RENDERERS, format_name).render(shown, options)
