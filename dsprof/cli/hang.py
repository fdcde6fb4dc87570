"""`dsprof hang`: why a run is stuck or crashed."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dsprof.cli.delivery import add_delivery, deliver, destination
from dsprof.cli.loading import add_epoch, add_paths, keep_live_states
from dsprof.errors import TraceError

if TYPE_CHECKING:
    from dsprof.analysis.hang.model import HangReport
    from dsprof.trace.run_choice import Stranger

_PAGE = "hang.html"
_ASKED = 4  # of the ranks to look at, so many are asked where they are


class HangCommand:
    """Names the rank that others wait for, in what, and why."""

    name = "hang"
    help = "name the rank that blocks a stuck run"
    description = """\
Say why a run is stuck or crashed: which rank, in which collective, since
when, and who waits for it.

  dsprof hang dsprof-out                      of what the run has written
  dsprof hang --live dsprof-out               of a run that is still running
  dsprof hang dsprof-out --format json        for other programs
  dsprof hang dsprof-out --format html        hang.html, with a picture

Exit code 0: no hang or crash is known; 1: there is one; 2: no file can be
read."""

    def prepare(self, parser: ArgumentParser) -> None:
        add_paths(parser, "trace file, folder of traces, or output of py-spy")
        parser.add_argument(
            "--live", action="store_true", help="also inspect the processes of this machine"
        )
        add_epoch(parser)
        add_delivery(parser, _formats, "text", _PAGE)

    def run(self, arguments: Namespace) -> int:
        """Show the verdicts."""
        from dsprof.reports.hang import render

        output = destination(arguments, _PAGE, arguments.paths)
        report = _report(arguments.paths, arguments.epoch, is_live=arguments.live)
        deliver(partial(render, report), arguments, output, "Page")
        return int(not report.is_healthy)


def _report(paths: Sequence[Path], epoch: int | None, *, is_live: bool) -> HangReport:
    from dsprof.analysis.hang.model import HangReport
    from dsprof.analysis.hang.ras import ras_verdicts
    from dsprof.diagnosis.hang_evidence import printed_ras

    of_ras = [*ras_verdicts(printed_ras(paths))]
    try:
        report = _of_traces(paths, epoch, is_live=is_live)
    except TraceError:
        if not of_ras:
            raise
        return HangReport(verdicts=of_ras)
    if not of_ras:
        return report
    known = [verdict for verdict in report.verdicts if not verdict.is_healthy]
    return HangReport(verdicts=[*known, *of_ras], groups=report.groups)


def _of_traces(paths: Sequence[Path], epoch: int | None, *, is_live: bool) -> HangReport:
    from dsprof.analysis.aggregates.endings import Endings
    from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
    from dsprof.analysis.hang.verdict import hang_of, report_of
    from dsprof.analysis.summarise import summarise
    from dsprof.diagnosis.hang_evidence import (
        asked_stacks,
        printed_stacks,
        seen_now,
        with_stacks,
    )
    from dsprof.trace.life import is_here
    from dsprof.trace.run import find_run
    from dsprof.trace.selection import Selection

    files = find_run(paths, Selection(epoch=epoch))
    keep_live_states(files)
    run = summarise(files, [Endings, FlightRecorders])
    endings = with_stacks(run[Endings], files, printed_stacks(paths))
    if is_live:
        endings = seen_now(endings, files)
    report = report_of(hang_of(endings, run[FlightRecorders]), endings)
    if is_live:
        first = report.verdicts[0]
        shown = {*first.ranks[:_ASKED], *first.waiting[:1]}
        pids = [header.pid for header in files.headers if is_here(header) and header.rank in shown]
        endings = with_stacks(endings, files, asked_stacks(pids))
        report = report_of(hang_of(endings, run[FlightRecorders]), endings)
    return _with_skipped(report, files.strangers)


def _with_skipped(report: HangReport, strangers: Sequence[Stranger]) -> HangReport:
    """Say which traces were skipped, if the others do not decide."""
    import msgspec

    from dsprof.analysis.hang.model import HangReport
    from dsprof.findings.wording import plural
    from dsprof.trace.schema import FILE_PATTERN

    first, *others = report.verdicts
    skipped = [one for one in strangers if one.path.match(f"{FILE_PATTERN}*")]
    if first.kind != "unknown" or not skipped:
        return report
    more = f"; and {plural(len(skipped) - 1, 'more file')}" if len(skipped) > 1 else ""
    text = f"{first.cause.text} Skipped: {skipped[0].path}: {skipped[0].reason}{more}."
    cause = msgspec.structs.replace(first.cause, text=text.strip())
    first = msgspec.structs.replace(first, cause=cause)
    return HangReport(verdicts=[first, *others], groups=report.groups)


def _formats() -> list[str]:
    from dsprof.reports.hang import RENDERERS

    return [renderer.name for renderer in RENDERERS]
