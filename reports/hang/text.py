"""A hang for a terminal: a paragraph, who waits where, and the stacks."""

from __future__ import annotations

from collections.abc import Iterator

from dsprof.analysis.hang.model import HangReport, HangVerdict
from dsprof.findings import formatting as fmt
from dsprof.findings.frames import shown_frames
from dsprof.findings.wording import ranks_do
from dsprof.reports import tables
from dsprof.reports.base import Options
from dsprof.reports.text.terminal import Page

_GROUPS = 12
_FRAMES = 8
_LINKS = 8


class TextRenderer:
    """Writes plain text."""

    name = "text"
    suffix = ".txt"

    def render(self, report: HangReport, /, options: Options) -> bytes:
        """Return UTF-8 text, wrapped to the width in the options."""
        page = Page.of(options)
        lines = [line for section in _sections(report, page) for line in [*section, ""]]
        return ("\n".join(lines).rstrip() + "\n").encode()


def _sections(report: HangReport, page: Page) -> Iterator[list[str]]:
    for number, verdict in enumerate(report.verdicts):
        colour = "1" if verdict.is_healthy else "1;31"
        sentence = page.wrap(verdict.sentence)
        cause = page.wrap(verdict.cause.text) if verdict.cause.text else []
        yield [*(page.paint(line, "" if number else colour) for line in sentence), *cause]
    if report.groups:
        table = tables.waits(report.groups[:_GROUPS])
        left = len(report.groups) - _GROUPS
        more = [f"  and {fmt.plural(left, 'more group')}"] if left > 0 else []
        yield [page.heading("Who waits where"), *page.table(table), *more]
    for verdict in report.verdicts[:1]:
        yield from filter(None, (_chain(verdict, page), _stacks(verdict, page)))


def _chain(verdict: HangVerdict, page: Page) -> list[str]:
    waits: dict[tuple[int, str], list[int]] = {}
    for waiter, awaited, call in verdict.chain:
        waits.setdefault((awaited, call), []).append(waiter)
    said = [
        f"{ranks_do(sorted(ranks), 'wait')} for rank {awaited} in {call}"
        for (awaited, call), ranks in waits.items()
    ]
    lines = [line for text in said[-_LINKS:] for line in page.wrap(text, "  ")]
    return [page.heading("From the waiting ranks to the root"), *lines] if lines else []


def _stacks(verdict: HangVerdict, page: Page) -> list[str]:
    lines = []
    for rank, stack in verdict.stacks.items():
        lines += page.wrap(f"rank {rank}", "  ")
        lines += (line for one in shown_frames(stack, _FRAMES) for line in page.wrap(one, "    "))
    return [page.heading("Where ranks are, the innermost call first"), *lines] if lines else []
