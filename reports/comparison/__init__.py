"""Changes between two runs, as a page, as terminal text, as JSON."""

from __future__ import annotations

from functools import partial

from dsprof.diagnosis.comparison.model import Comparison
from dsprof.reports.base import Renderer, render_in
from dsprof.reports.comparison.html import HtmlRenderer
from dsprof.reports.comparison.text import TextRenderer
from dsprof.reports.json import JsonRenderer

RENDERERS: tuple[Renderer[Comparison], ...] = (TextRenderer(), HtmlRenderer(), JsonRenderer())

render = partial(render_in, RENDERERS)
