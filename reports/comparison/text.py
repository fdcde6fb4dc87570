"""A comparison for a terminal; it begins with the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from dsprof.diagnosis.comparison.model import Comparison, Side
from dsprof.findings.finding import Table
from dsprof.reports import content
from dsprof.reports.base import Options
from dsprof.reports.comparison import tables
from dsprof.reports.text.terminal import Page


class TextRenderer:
    """Writes plain text; of the kinds of collectives only those that changed."""

    name = "text"
    suffix = ".txt"

    def render(self, comparison: Comparison, /, options: Options) -> bytes:
        """Return UTF-8 text, wrapped to the width in the options."""
        page = Page.of(options)
        lines = [line for section in _sections(comparison, page) for line in [*section, ""]]
        return ("\n".join(lines).rstrip() + "\n").encode()


def _sections(comparison: Comparison, page: Page) -> Iterator[list[str]]:
    verdict = page.wrap(comparison.verdict)
    yield [*(page.paint(line, "1") for line in verdict), *page.wrap(comparison.summary)]
    yield [
        *_side("before: ", comparison.before, page),
        *_side("after:  ", comparison.after, page),
    ]
    for heading, table in tables.sections(comparison, is_brief=True):
        yield _section(heading, table, page)


def _side(label: str, side: Side, page: Page) -> list[str]:
    return page.wrap(" | ".join([side.name, *content.run_line(side.run)]), "", label)


def _section(heading: str, table: Table, page: Page) -> list[str]:
    caption = page.wrap(table.caption, "  ") if table.caption else []
    return [page.heading(heading), *caption, *page.table(table)]
