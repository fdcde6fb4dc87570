"""Changes between two runs, as a page without script and network, as terminal text, as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from dsprof.diagnosis.comparison.model import Comparison, Side
from dsprof.findings.finding import Table
from dsprof.reports import content
from dsprof.reports import json as json_format
from dsprof.reports.base import Format, Options, Renderer, render_in
from dsprof.reports.comparison import tables
from dsprof.reports.html.step_drawings import step_pair
from dsprof.reports.html.templates import rendered
from dsprof.reports.text.terminal import Page, in_text


def _page(comparison: Comparison, options: Options) -> bytes:
    sides = (comparison.before, comparison.after)
    steps = [side.typical_step for side in sides if side.typical_step is not None]
    bars = [content.typical_bar(step) for step in steps]
    return rendered(
        "comparison.html.j2",
        c=comparison,
        title=f"dsprof: {comparison.before.name} and {comparison.after.name}",
        sides=[(side, _run_line(side)) for side in sides],
        steps=step_pair(*bars) if len(bars) == len(sides) else None,
        statistics=[step.statistic for step in steps],
        sections=list(tables.sections(comparison)),
    )


def _sections(comparison: Comparison, page: Page) -> Iterator[list[str]]:
    """Yield the verdict first; of the kinds of collectives only those that changed."""
    verdict = page.wrap(comparison.verdict)
    yield [*(page.paint(line, "1") for line in verdict), *page.wrap(comparison.summary)]
    yield [
        *_side("before: ", comparison.before, page),
        *_side("after:  ", comparison.after, page),
    ]
    for heading, table in tables.sections(comparison, is_brief=True):
        yield _section(heading, table, page)


def _side(label: str, side: Side, page: Page) -> list[str]:
    return page.wrap(" | ".join([side.name, *_run_line(side)]), "", label)


def _run_line(side: Side) -> list[str]:
    selected = [f"selected: {side.run.selection}"] if side.run.selection else []
    words = content.run_line(side.run, is_recorded=side.is_recorded)
    return words + content.started(side.run) + selected


def _section(heading: str, table: Table, page: Page) -> list[str]:
    caption = page.wrap(table.caption, "  ") if table.caption else []
    return [page.heading(heading), *caption, *page.table(table)]


RENDERERS: tuple[Renderer[Comparison], ...] = (
    in_text(_sections),
    Format("html", ".html", _page),
    json_format.RENDERER,
)

render = partial(render_in, RENDERERS)
