"""The page of a rule as HTML: text, lists, tables and code; no links, no markup of its own."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


def explained(page: str) -> Markup:
    """Render a page without its title; headings become those of a finding."""
    text = page.split("\n", 1)[-1] if page.startswith("# ") else page
    return Markup(_renderer().render(text))


@cache
def _renderer() -> MarkdownIt:
    from markdown_it import MarkdownIt

    made = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    for name in ("link_open", "link_close"):  # they lead to files that a reader may not have
        made.add_render_rule(name, lambda *_: "")
    for name in ("heading_open", "heading_close"):
        made.add_render_rule(name, _heading)
    for name in ("fence", "code_block"):
        made.add_render_rule(name, _code)
    return made


def _heading(_: object, tokens: list[Token], index: int, *__: object) -> str:
    return "<h4>" if tokens[index].nesting == 1 else "</h4>"


def _code(_: object, tokens: list[Token], index: int, *__: object) -> str:
    """Show code that the keyboard can scroll where it is wider than the page."""
    return f'<pre tabindex="0"><code>{escape(tokens[index].content)}</code></pre>\n'
