"""`dsprof report`: from traces to a page, text or JSON."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial

from dsprof.cli.delivery import add_delivery, deliver, destination
from dsprof.cli.loading import Reading, add_judging, add_paths, add_reading, load_diagnosis

_PAGE = "report.html"


class ReportCommand:
    """Reads traces, judges the run and shows the result."""

    name = "report"
    help = "analyse a recorded run and write the report"
    description = """\
Read the traces of a run, analyse them, and write the report.

  dsprof report dsprof-out                    report.html, and a summary here
  dsprof report dsprof-out --open             the page in a browser
  dsprof report dsprof-out --format text      all of it in the terminal
  dsprof report dsprof-out --format json      for other programs

PATH is a file or a folder of files, plain, gzip or in a zip, or the address
of one (s3://bucket/run):
  dsprof trace               of a recorded run
  profiler trace             torch.profiler
  export of Nsight Systems   nsys export --type sqlite
  dump of NCCL Inspector     NCCL's profiler plugin, JSON
  execution trace            torch's ExecutionTraceObserver
  Chakra graph               .et
  flight recorder dump       torch, after a timeout
  memory snapshot            torch.cuda.memory._dump_snapshot()
  log                        NCCL, RCCL, torch, DeepSpeed
  saved diagnosis            dsprof report --format json -o FILE

If a folder has several runs, the newest is shown; to see another, give only
its files. If a run restarted, its last epoch is shown; to see another, give
--epoch N."""

    def prepare(self, parser: ArgumentParser) -> None:
        add_paths(parser, "file or folder, as above")
        add_delivery(parser, _formats, "html", _PAGE, "html, text, json or a plugin's")
        add_judging(parser)
        add_reading(parser)
        parser.add_argument(
            "--static",
            action="store_true",
            help="a small page: drawings of three steps, which cannot be zoomed",
        )

    def run(self, arguments: Namespace) -> int:
        """Write the report; whatever is wrong with the arguments is said before the long part."""
        from dsprof.reports import render

        options = (arguments.config, arguments.baseline)
        inputs = [*arguments.paths, *(path for path in options if path)]
        output = destination(arguments, _PAGE, inputs)
        diagnosis = load_diagnosis(
            arguments.paths, arguments.config, arguments.baseline, Reading.of(arguments)
        )
        show = partial(render, diagnosis)
        is_static = arguments.static
        deliver(show, arguments, output, "Report", is_static=is_static)
        return 0


def _formats() -> list[str]:
    from dsprof.reports import formats

    return formats()
