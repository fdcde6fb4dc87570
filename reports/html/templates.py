"""Templates of the pages: autoescaped, and filled with numbers as words."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Collection, Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec

from dsprof.findings import brief
from dsprof.findings import formatting as fmt
from dsprof.findings.finding import Table
from dsprof.findings.frames import shown_frames
from dsprof.findings.glossary import meaning
from dsprof.findings.wording import reason
from dsprof.reports.html.markdown import explained
from dsprof.reports.tables.listing import bounded

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_CONTROLS = "".join(map(chr, (*range(9), 11, 12, *range(14, 32), *range(127, 160))))
_UNSEEN = dict.fromkeys(map(ord, _DIRECTIONS + _CONTROLS), "?")
"""Marks that turn the direction of text: those of a name would turn what is beside it, too.
And controls: HTML has no NUL, and an escape steers the terminal of whoever prints the page."""

_ONE_LINE = 80  # characters of a patch
_NAME_BREAK = re.compile(r"(?<=_)(?!_)|(?<=\w/)(?=\w{2})")  # not in `GB/s`, nor in ` /data`

NO_SCRIPT = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
"""The content security policy of pages without a script."""


@cache
def asset(name: str) -> str:
    """Return a file that the pages are made of."""
    return (resources.files("dsprof.reports.html") / "assets" / name).read_text("utf-8")


STYLES = ("base", "first_screen", "findings", "drawings", "tables", "hang", "print")
_COMMENT = re.compile(r"//.*|/\*.*\*/")
SCRIPTS = ("page", "findings", "tables", "flames")


@cache
def stylesheet() -> str:
    """Return the style sheet that all pages share."""
    return "\n".join(_for_browsers(f"{name}.css") for name in STYLES)


@cache
def script(has_timeline: bool) -> str:
    """Return the script of the report's page."""
    names = (*SCRIPTS, "timeline") if has_timeline else SCRIPTS
    return "\n".join(_for_browsers(f"{name}.js") for name in names)


def _for_browsers(name: str) -> str:
    """Return a file without what only its editors need, a tenth of the page of a small run."""
    lines = map(str.strip, asset(name).splitlines())
    return "\n".join(line for line in lines if line and not _COMMENT.fullmatch(line))


def packed(data: bytes) -> str:
    """Return data as gzip in base85, which a script of the page unpacks: 6 % below base64."""
    text = base64.b85encode(gzip.compress(data, 9, mtime=0))
    return text.translate(bytes.maketrans(b"<>&", b",.:")).decode()


@cache
def environment() -> Environment:
    """Return what loads the templates, with the filters that they use."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        autoescape=True,
        finalize=lambda value: _shown(value) if type(value) is str else value,
        undefined=StrictUndefined,
        loader=FunctionLoader(asset),
        optimized=False,  # each template is filled once: optimising costs more than it saves
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "bounded": bounded,
        "cell": fmt.cell,
        "count": fmt.count,
        "data": lambda part: msgspec.json.encode(part).decode(),
        "duration": fmt.duration,
        "explained": explained,
        "first_sentence": brief.first_sentence,
        "frames": shown_frames,
        "meaning": meaning,
        "named_ranks": fmt.named_ranks,
        "plural": fmt.plural,
        "ranks": fmt.ranks,
        "reason": reason,
        "saving": brief.saving,
        "share": fmt.share,
        "tops": tops,
        "breakable": breakable,
        "patch": _patch,
        "prose": prose,
        "own": Markup,  # our own style sheet and script, as they are
    }
    return made


def _patch(patch: Mapping[str, Any]) -> str:
    """Write a patch as JSON, on one line if that is short."""
    line = json.dumps(patch, ensure_ascii=False)
    return line if len(line) <= _ONE_LINE else json.dumps(patch, indent=2, ensure_ascii=False)


def rendered(template: str, **shown: Any) -> bytes:
    """Fill a template, as a page without a script unless a policy is given that allows one."""
    policy_and_style = {"csp": NO_SCRIPT, "css": stylesheet()}
    page = environment().get_template(template).render(policy_and_style | shown)
    return page.encode("utf-8", "replace")


def tops(table: Table, bars: Collection[str]) -> list[float]:
    """Return what a full bar means in each column of these names, and 0 for other columns."""
    found: list[float] = []
    for place, column in enumerate(table.columns):
        values = [row[place] for row in table.rows] if column.label in bars else []
        numbers = [value for value in values if isinstance(value, (int, float))]
        found.append(1.0 if numbers and column.kind == "share" else max(numbers, default=0))
    return found


def breakable(name: str) -> Markup:
    """Escape a name, and let it break after an underscore or a slash rather than anywhere."""
    from markupsafe import Markup, escape

    return Markup("<wbr>").join(map(escape, _NAME_BREAK.split(_shown(name))))


def prose(text: str) -> Markup:
    """Escape a sentence, show what it has in backticks as code, and keep units at their numbers."""
    from markupsafe import Markup, escape

    pieces = _shown(text).split("`")
    if len(pieces) % 2 == 0:
        pieces[-2:] = ["`".join(pieces[-2:])]
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if place % 2 else escape(piece)
        for place, piece in enumerate(pieces)
    )


def _shown(text: str) -> str:
    return fmt.unbroken(text).translate(_UNSEEN)
