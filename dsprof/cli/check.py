"""`dsprof check`: fail a job where a run costs more than its budget."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from dsprof.cli.delivery import add_quiet
from dsprof.cli.loading import Reading, add_judging, add_reading, load_diagnosis
from dsprof.cli.output import print_bytes
from dsprof.errors import escaped


class CheckCommand:
    """Judges a run and compares it with a budget."""

    name = "check"
    help = "fail if a run exceeds a budget"
    description = """\
Analyse a run and compare it with a budget, for a CI job:

  dsprof check dsprof-out --budget budget.yaml

  bytes_per_step: 64e6        # of one rank's step, on average
  operations_per_step: 40
  exposed_share: 0.3          # of the step, waiting for communication
  findings: {high: 0, low: 3} # at most so many of this severity or higher
  may_be_unknown: [late-rank, low-bus-bandwidth] # rules and figures

Prints each exceeded limit in a line. An unknown figure breaks its limit, and an
unknown verdict breaks a budget with findings, unless may_be_unknown names it.
Exit code 0: the budget holds; 1: it does not; 2: a file cannot be read."""

    def prepare(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "paths",
            nargs="+",
            type=Path,
            metavar="PATH",
            help="trace file, folder of traces, or saved diagnosis",
        )
        parser.add_argument(
            "--budget", type=Path, required=True, metavar="FILE", help="YAML file with limits"
        )
        add_judging(parser)
        add_reading(parser)
        add_quiet(parser, "print broken limits only")

    def run(self, arguments: Namespace) -> int:
        """Print what is broken; the budget is read first, for judging a run takes longer."""
        from dsprof.diagnosis.budget.judge import broken
        from dsprof.diagnosis.budget.limits import load_budget
        from dsprof.rules import all_rules

        budget = load_budget(arguments.budget, [rule.meta.id for rule in all_rules()])
        diagnosis = load_diagnosis(
            arguments.paths, arguments.config, arguments.baseline, Reading.of(arguments)
        )
        lines = broken(budget, diagnosis)
        holds = [] if arguments.quiet else [f"{arguments.budget}: the budget holds"]
        said = lines or holds
        print_bytes("".join(f"{escaped(line)}\n" for line in said).encode())
        return 1 if lines else 0
