"""Templates of the pages: autoescaped, and filled with numbers as words."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from dsprof.findings import brief
from dsprof.findings import formatting as fmt
from dsprof.reports import content
from dsprof.reports.glossary import meaning
from dsprof.reports.tables.listing import bounded

if TYPE_CHECKING:
    from jinja2 import Environment

_DIRECTIONS = dict.fromkeys(
    map(ord, "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"), "?"
)
"""Marks that turn the direction of text: those of a name would turn what stands beside it, too."""

_SCRIPT_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


NO_SCRIPT = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
"""The content security policy of pages without a script."""


@cache
def asset(name: str) -> str:
    """Return a file that the pages are made of."""
    return (resources.files("dsprof.reports.html") / "assets" / name).read_text("utf-8")


@cache
def environment() -> Environment:
    """Return what loads the templates, with the filters that they use."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        autoescape=True,
        finalize=lambda value: value.translate(_DIRECTIONS) if type(value) is str else value,
        undefined=StrictUndefined,
        loader=FunctionLoader(asset),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "bounded": bounded,
        "cell": fmt.cell,
        "count": fmt.count,
        "docs_page": content.docs_page,
        "duration": fmt.duration,
        "meaning": meaning,
        "named_ranks": fmt.named_ranks,
        "saving": brief.saving,
        "share": fmt.share,
        "patch": lambda patch: json.dumps(patch, indent=2, ensure_ascii=False),
        "script_safe": lambda text: Markup(script_safe(text)),
        "own": Markup,  # our own style sheet and script, as they are
    }
    return made


def script_safe(text: str) -> str:
    """Escape JSON so that no sequence in it can end, or open, a script element."""
    return text.translate(_SCRIPT_ESCAPES)
