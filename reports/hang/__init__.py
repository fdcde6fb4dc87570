"""A hang, as a page, as terminal text, as JSON."""

from __future__ import annotations

from functools import partial

from dsprof.analysis.hang.model import HangReport
from dsprof.reports.base import Renderer, render_in
from dsprof.reports.hang.html import HtmlRenderer
from dsprof.reports.hang.text import TextRenderer
from dsprof.reports.json import JsonRenderer

RENDERERS: tuple[Renderer[HangReport], ...] = (TextRenderer(), HtmlRenderer(), JsonRenderer())

render = partial(render_in, RENDERERS)
