"""`dsprof report`: from traces to a page, text or JSON."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsprof.cli.output import check_writable, print_bytes, terminal
from dsprof.cli.progress import processes_for, progress_on_terminal
from dsprof.errors import ConfigError, DsprofError, escaped
from dsprof.inputs import open_input

if TYPE_CHECKING:
    from dsprof.diagnosis.model import Diagnosis
    from dsprof.reports import Renderer

_STANDARD_OUTPUT = Path("-")


class ReportCommand:
    """Reads traces, judges the run and shows the result."""

    name = "report"
    help = "judge a recorded run and write the report"
    description = """\
Read the traces of a run, judge it, and write the report.

  dsprof report dsprof-out                    report.html, and a summary here
  dsprof report trace.rank0*.json             the same of these files
  dsprof report dsprof-out --format text      all of it in the terminal
  dsprof report dsprof-out --format json      for other programs
  dsprof report saved.json                    the page of what json saved

Of a folder with several runs the newest is shown; to see another, give its
files by name."""

    def prepare(self, parser: ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument(
            "paths", nargs="+", type=Path, metavar="PATH", help="trace file, or folder of traces"
        )
        parser.add_argument(
            "--format",
            type=_renderer,
            default="html",
            metavar="FORMAT",
            help="html (default), text or json",
        )
        parser.add_argument(
            "-o",
            "--output",
            type=Path,
            metavar="FILE",
            help="where to; - is standard output (default: report.html for html, else -)",
        )
        parser.add_argument(
            "--config", type=Path, metavar="FILE", help="YAML file with thresholds under 'rules:'"
        )
        parser.add_argument(
            "--baseline",
            type=Path,
            metavar="FILE",
            help="what communication costs on this machine, as dsprof bench measured it",
        )
        parser.add_argument(
            "--plotlyjs", type=Path, metavar="FILE", help="a smaller plotly.js for the page"
        )

    def run(self, arguments: Namespace) -> int:
        """Write the report; whatever is wrong with the arguments is said before the long part."""
        from dsprof.reports import render, write_whole

        renderer: Renderer = arguments.format
        output = arguments.output or (
            Path("report.html") if renderer.name == "html" else _STANDARD_OUTPUT
        )
        if output != _STANDARD_OUTPUT:
            check_writable(output, arguments.paths)
        plotlyjs = _bundle(arguments.plotlyjs) if arguments.plotlyjs else None
        diagnosis = _diagnosis(arguments.paths, arguments.config, arguments.baseline)
        shown = terminal()
        if output == _STANDARD_OUTPUT:
            options = {"plotlyjs": plotlyjs, **shown}
            print_bytes(render(diagnosis, renderer.name, **options))
            return 0
        page = render(diagnosis, renderer.name, plotlyjs=plotlyjs)
        if output.is_fifo():
            print(f"dsprof: waiting for a reader of {escaped(str(output))}", file=sys.stderr)
        write_whole(output, page)
        print_bytes(render(diagnosis, "text", **shown))
        print_bytes(f"\nReport: {escaped(str(output.resolve()))}\n".encode())
        return 0


def _bundle(path: Path) -> bytes:
    try:
        with open_input(path) as file:
            bundle = file.read()
        problem = "" if b"Plotly" in bundle else "it is none"
    except OSError as error:
        problem = str(error.strerror)
    if problem:
        raise ConfigError(
            f"cannot read the plotly.js bundle {path}: {problem}; leave the option out "
            "to use the one of the installed plotly package"
        )
    return bundle


def _renderer(name: str) -> Renderer:
    from dsprof.reports import RENDERERS

    for renderer in RENDERERS:
        if renderer.name == name:
            return renderer
    names = ", ".join(renderer.name for renderer in RENDERERS)
    raise ArgumentTypeError(f"{name!r} is no format; choose one of {names}")


def _diagnosis(paths: Sequence[Path], config: Path | None, baseline: Path | None) -> Diagnosis:
    from dsprof.analysis.baseline import read_baseline
    from dsprof.config import load_thresholds
    from dsprof.diagnosis.build import diagnose
    from dsprof.diagnosis.model import from_json
    from dsprof.rules import RULES
    from dsprof.trace.run import find_run, is_diagnosis
    from dsprof.trace.source import size_of

    saved = [path for path in paths if is_diagnosis(path)]
    if saved and (config or baseline or len(paths) > 1):
        raise DsprofError(
            f"{saved[0]}: a saved diagnosis is shown as it is; give it alone and without --config "
            "or --baseline, or give the traces"
        )
    if saved:
        return from_json(saved[0].read_bytes(), str(saved[0]))
    schema = {rule.meta.id: type(rule.thresholds) for rule in RULES}
    thresholds = load_thresholds(config, schema) if config else {}
    costs = (read_baseline(baseline), str(baseline)) if baseline else None
    run = find_run(paths)
    processes = processes_for([size_of(path) for path in run.files])
    progress = progress_on_terminal()
    return diagnose(run, thresholds, baseline=costs, processes=processes, progress=progress)
