"""`dsprof hang`: why a run is stuck or crashed."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial

from dsprof.cli.delivery import add_delivery, deliver, destination
from dsprof.cli.loading import add_epoch, add_paths

_PAGE = "hang.html"


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
        add_paths(parser, "traces, flight recorder dumps, output of py-spy, ncclras or dmesg")
        parser.add_argument(
            "--live", action="store_true", help="also inspect the processes of this machine"
        )
        add_epoch(parser)
        add_delivery(parser, _formats, "text", _PAGE)

    def run(self, arguments: Namespace) -> int:
        """Show the verdicts."""
        from dsprof.diagnosis.hang_report import hang_report
        from dsprof.reports.hang import render

        output = destination(arguments, _PAGE, arguments.paths)
        report = hang_report(arguments.paths, arguments.epoch, is_live=arguments.live)
        deliver(partial(render, report), arguments, output, "Page")
        return int(not report.is_healthy)


def _formats() -> list[str]:
    from dsprof.reports.hang import RENDERERS

    return [renderer.name for renderer in RENDERERS]
