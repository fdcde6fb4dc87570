"""`dsprof compare`: what changed between two runs."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial

from dsprof.cli.delivery import add_delivery, deliver, destination
from dsprof.cli.loading import Reading, add_reading, load_diagnosis, trace_path

_PAGE = "comparison.html"


class CompareCommand:
    """Judges two runs and says what is different."""

    name = "compare"
    help = "show what changed between two runs"
    description = """\
Analyse two runs and show what changed from the first to the second: settings,
versions, operations and bytes (exactly), times (with their noise), findings.

  dsprof compare before after                two folders of traces
  dsprof compare before.json after.json      saved by: report --format json
  dsprof compare before after --format html  comparison.html, and text here

The verdict comes first. A step is called faster or slower if the 99 % interval
of the difference excludes zero, as in fewer than 1 % of pairs of equal runs.
Record at least 5 s of steps of each run. Of a folder with several runs the
newest is taken."""

    def prepare(self, parser: ArgumentParser) -> None:
        for name in ("before", "after"):
            parser.add_argument(
                name,
                type=trace_path,
                metavar=name.upper(),
                help="folder of traces, trace file, or saved diagnosis",
            )
        add_delivery(parser, _formats, "text", _PAGE)
        add_reading(parser)

    def run(self, arguments: Namespace) -> int:
        """Show the comparison."""
        from dsprof.diagnosis.comparison.build import compare
        from dsprof.reports.comparison import render

        paths = (arguments.before, arguments.after)
        output = destination(arguments, _PAGE, paths)
        reading = Reading.of(arguments)
        before, after = (load_diagnosis([path], reading=reading) for path in paths)
        comparison = compare(before, after, (str(paths[0]), str(paths[1])))
        deliver(partial(render, comparison), arguments, output, "Comparison")
        return 0


def _formats() -> list[str]:
    from dsprof.reports.comparison import RENDERERS

    return [renderer.name for renderer in RENDERERS]
