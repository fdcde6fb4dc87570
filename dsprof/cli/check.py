"""`dsprof check`: fail a CI job if a run exceeds its budget."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsprof.cli.delivery import add_quiet
from dsprof.cli.loading import (
    Reading,
    add_judging,
    add_paths,
    add_reading,
    load_diagnosis,
    local_path,
)
from dsprof.cli.output import print_lines
from dsprof.findings.wording import plural, some

if TYPE_CHECKING:
    from dsprof.diagnosis.model import Diagnosis

_NAMED = 6


class CheckCommand:
    """Judges a run and compares it with a budget."""

    name = "check"
    help = "fail if a run exceeds a budget"
    description = """\
Analyse a run and compare it with a budget, for a CI job:

  dsprof check dsprof-out --budget budget.yaml

  bytes_per_step: 64e6        # per rank and step, on average
  operations_per_step: 40
  exposed_share: 0.3          # of the step, waiting for communication
  findings: {high: 0, low: 3} # at most so many of this severity or higher

Prints one line for each broken limit. A figure that was not measured breaks its
limit, unless may_be_unknown lists it. An unknown verdict breaks nothing, unless
may_be_unknown lists rules: then all other rules must reach a verdict.
Exit code 0: the budget holds; 1: it does not; 2: a file cannot be read."""

    def prepare(self, parser: ArgumentParser) -> None:
        add_paths(parser, "trace file, folder of traces, or saved diagnosis")
        parser.add_argument(
            "--budget", type=local_path, required=True, metavar="FILE", help="YAML file with limits"
        )
        add_judging(parser)
        add_reading(parser)
        add_quiet(parser, "print broken limits only")

    def run(self, arguments: Namespace) -> int:
        """Print what is broken; the budget is read first, because judging a run takes longer."""
        from dsprof.diagnosis.budget.judge import broken, unjudged
        from dsprof.diagnosis.budget.limits import load_budget
        from dsprof.rules import all_rules

        budget = load_budget(arguments.budget, [rule.meta.id for rule in all_rules()])
        diagnosis = load_diagnosis(
            arguments.paths, arguments.config, arguments.baseline, Reading.of(arguments)
        )
        lines = broken(budget, diagnosis)
        beside = _missing(diagnosis) + _beside(unjudged(budget, diagnosis))
        holds = f"{arguments.budget}: the budget holds{beside}"
        print_lines(lines or ([] if arguments.quiet else [holds]))
        return 1 if lines else 0


def _missing(diagnosis: Diagnosis) -> str:
    """Say what of the run was not checked."""
    missing, selected = len(diagnosis.quality.missing_ranks), diagnosis.run.selection
    part = f"; only a part was checked: {selected.replace('; ', ', ')}" if selected else ""
    if not missing:
        return part
    world = diagnosis.run.world_size
    ranks = f"{missing} of {world} ranks are" if world else plural(missing, "rank")
    return f"{part}; {ranks} missing"


def _beside(rules: Sequence[str]) -> str:
    """Say which rules reached no verdict, by some of their names."""
    if not rules:
        return ""
    verdicts = "1 verdict is" if len(rules) == 1 else f"{len(rules)} verdicts are"
    return f"; {verdicts} unknown: {some(rules, _NAMED)}"
