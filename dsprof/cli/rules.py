"""`dsprof rules` and `dsprof explain`: which rules there are, and what each is about."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from dsprof.cli.output import print_bytes, print_lines, terminal
from dsprof.config.settings import did_you_mean, in_one_line
from dsprof.errors import DsprofError

if TYPE_CHECKING:
    from dsprof.analysis.summary import Aggregate
    from dsprof.rules.rule import Rule


class RulesCommand:
    """Lists the rules."""

    name = "rules"
    help = "list the rules"
    description = """\
List the rules by category, each with what it needs from a trace and its
thresholds. Rules of plugins name their package.

  dsprof rules
  dsprof explain late-rank"""

    def prepare(self, parser: ArgumentParser) -> None:
        """Take no arguments."""

    def run(self, arguments: Namespace) -> int:
        """Print the list."""
        from dsprof.rules import all_rules

        print_lines(_listed(all_rules()))
        return 0


class ExplainCommand:
    """Prints the page of a rule."""

    name = "explain"
    help = "explain a rule: its meaning, cost and remedy"
    description = """\
Print the page of a rule: what it means, how it is found, what it costs, what
to do, when it is wrong, and its thresholds.

  dsprof explain late-rank
  dsprof rules                the ids of all rules"""

    def prepare(self, parser: ArgumentParser) -> None:
        parser.add_argument("rule", metavar="RULE", help="id of the rule, as reports name it")

    def run(self, arguments: Namespace) -> int:
        """Print the page."""
        from dsprof.reports.base import Options
        from dsprof.reports.text.markdown import EXPLANATION
        from dsprof.rules import all_rules

        page = _page(all_rules(), arguments.rule)
        print_bytes(EXPLANATION.render(page, Options(**terminal())))
        return 0


def _listed(rules: Iterable[Rule]) -> Iterator[str]:
    category = attrgetter("meta.category")
    for name, group in groupby(sorted(rules, key=category), category):
        yield name
        for rule in group:
            yield f"  {rule.meta.id}: {rule.meta.failing_title}"
            yield f"      needs {', '.join(map(_words, rule.meta.needs))}"
            if thresholds := _thresholds(rule):
                yield f"      thresholds {thresholds}"
            if rule.meta.package:
                yield f"      from {rule.meta.package}"
        yield ""


def _words(aggregate: type[Aggregate]) -> str:
    """Name what a rule needs: `FlightRecorders` are "flight recorders"."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", aggregate.__name__).lower()


def _thresholds(rule: Rule) -> str:
    values = rule.thresholds
    return ", ".join(f"{one.name}={getattr(values, one.name)}" for one in fields(values))


def _page(rules: Iterable[Rule], name: str) -> str:
    """Return a rule's page in Markdown; of a plugin without one, what its `RuleMeta` says.

    Raises:
        DsprofError: there is no such rule.
    """
    from dsprof.rules.page import page_of

    by_id = {rule.meta.id: rule for rule in rules}
    if name not in by_id:
        near = did_you_mean(name, by_id, listed_by="dsprof rules")
        raise DsprofError(f"there is no rule '{in_one_line(name)}'{near}")
    rule = by_id[name]
    listed = "\n".join(_listed([rule]))
    return page_of(rule) or f"# {name}\n\n{rule.meta.why}\n\n```\n{listed}\n```\n"
