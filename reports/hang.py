"""A hang, as a page without script and network, as terminal text, as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from dsprof._version import __version__
from dsprof.analysis.hang.model import HangReport, HangVerdict
from dsprof.findings.frames import shown_frames
from dsprof.findings.wording import ranks_do
from dsprof.reports import json as json_format
from dsprof.reports import tables
from dsprof.reports.base import Format, Options, Renderer, render_in
from dsprof.reports.html.hangs import picture
from dsprof.reports.html.templates import rendered
from dsprof.reports.tables.hangs import waits
from dsprof.reports.text.terminal import Page, in_text

_GROUPS = 12
_FRAMES = 8
_LINKS = 8


def _page(report: HangReport, options: Options) -> bytes:
    return rendered(
        "hang_page.html.j2",
        hang=report,
        picture=picture(report),
        version=__version__,
        title="dsprof: hang",
        tables=tables,
    )


def _sections(report: HangReport, page: Page) -> Iterator[list[str]]:
    """Yield a paragraph, who waits where, and the stacks."""
    for number, verdict in enumerate(report.verdicts):
        colour = "1" if verdict.is_healthy else "1;31"
        sentence = page.wrap(verdict.sentence)
        cause = page.wrap(verdict.cause.text) if verdict.cause.text else []
        remedy = page.wrap(f"Do: {verdict.remedy}") if verdict.remedy else []
        lead = (page.paint(line, "" if number else colour) for line in sentence)
        yield [*lead, *cause, *remedy]
    if report.groups:
        table = waits(report.groups[:_GROUPS])
        more = page.more(len(report.groups) - _GROUPS, "group")
        yield [page.heading("Who waits where"), *page.table(table), *more]
    for verdict in report.verdicts[:1]:
        yield from filter(None, (_chain(verdict, page), _stacks(verdict, page)))


def _chain(verdict: HangVerdict, page: Page) -> list[str]:
    waiting: dict[tuple[int, str], list[int]] = {}
    for waiter, awaited, call in verdict.chain:
        waiting.setdefault((awaited, call), []).append(waiter)
    said = [
        f"{ranks_do(sorted(ranks), 'wait')} for rank {awaited} in {call}"
        for (awaited, call), ranks in waiting.items()
    ]
    lines = [line for text in said[-_LINKS:] for line in page.wrap(text, "  ")]
    return [page.heading("From the waiting ranks to the root"), *lines] if lines else []


def _stacks(verdict: HangVerdict, page: Page) -> list[str]:
    lines = []
    for rank, stack in verdict.where.items():
        lines += page.wrap(f"rank {rank}", "  ")
        lines += (line for one in shown_frames(stack, _FRAMES) for line in page.wrap(one, "    "))
    return [page.heading("Where ranks are, the innermost call first"), *lines] if lines else []


RENDERERS: tuple[Renderer[HangReport], ...] = (
    in_text(_sections),
    Format("html", ".html", _page),
    json_format.RENDERER,
)

render = partial(render_in, RENDERERS)
