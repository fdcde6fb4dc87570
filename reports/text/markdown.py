"""The page of a rule for a terminal: text, lists, tables and code, without marks and links."""

from __future__ import annotations

from collections.abc import Iterator

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from dsprof.findings.finding import Column, Table
from dsprof.reports.text.terminal import Page, in_text, printable

_TEXT = ("text", "code_inline", "softbreak", "hardbreak")


def _blocks(node: SyntaxTreeNode, page: Page, indent: str = "") -> Iterator[list[str]]:
    for block in node.children:
        if block.type == "heading":
            is_title = block.tag == "h1"
            yield [page.paint(_plain(block), "1") if is_title else page.heading(_plain(block))]
        elif block.type == "fence":
            yield [f"{indent}    {printable(line)}".rstrip() for line in block.content.splitlines()]
        elif block.type == "table":
            labels, *rows = ([_plain(cell) for cell in row.children] for row in _rows(block))
            yield list(page.table(Table(tuple(map(Column, labels)), tuple(map(tuple, rows)))))
        elif block.type in ("bullet_list", "ordered_list"):
            yield [line for item in block.children for line in _item(item, page, indent)]
        elif block.type == "blockquote":
            yield from _blocks(block, page, indent + "  ")
        else:
            yield page.wrap(_plain(block), indent)


def _rows(table: SyntaxTreeNode) -> Iterator[SyntaxTreeNode]:
    return (row for part in table.children for row in part.children)


def _item(item: SyntaxTreeNode, page: Page, indent: str) -> Iterator[str]:
    mark = f"{item.info}. " if item.info else "- "
    blocks = _blocks(item, page, indent + " " * len(mark))
    lines = [line for block in blocks for line in block] or [""]
    yield f"{indent}{mark}{lines[0].lstrip()}".rstrip()
    yield from lines[1:]


def _plain(node: SyntaxTreeNode) -> str:
    """Return the text of a block in one line; a name amid text that is a plain word is quoted."""
    parts = [part for part in node.walk() if part.type in _TEXT]
    return printable("".join(_text(part, is_alone=len(parts) == 1) for part in parts))


def _text(part: SyntaxTreeNode, *, is_alone: bool) -> str:
    if part.type == "code_inline" and part.content.isalpha() and not is_alone:
        return f"'{part.content}'"
    return part.content or " "


def _sections(text: str, page: Page) -> Iterator[list[str]]:
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    return _blocks(SyntaxTreeNode(parser.parse(text)), page)


EXPLANATION = in_text(_sections)
