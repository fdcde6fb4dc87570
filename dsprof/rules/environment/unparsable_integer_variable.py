"""unparsable-integer-variable: an integer of NCCL given as a word, with a unit or in octal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.rank_sets import RankSet, ranks_of, union, written_ranks
from dsprof.analysis.summary import RunSummary
from dsprof.files.redaction import REDACTED
from dsprof.findings.finding import Column, Finding, Severity, Status, Table, worst
from dsprof.findings.wording import shortened
from dsprof.rules.environment.redacted_variables import unknown_values
from dsprof.rules.environment.variable_values import strtoll
from dsprof.rules.knowledge.variables import integer_variables
from dsprof.rules.rule import NoThresholds, Rule, RuleMeta

_OFF_WORDS = frozenset(("false", "no", "off", "n", "f", "none", "disable", "disabled"))


class _Misread(NamedTuple):
    name: str
    value: str
    ranks: RankSet
    parsed: int
    severity: Severity


class UnparsableIntegerVariable(Rule):
    """Looks for values of which NCCL reads something else than was written."""

    meta = RuleMeta(
        id="unparsable-integer-variable",
        title="NCCL reads all integer variables as written",
        failing_title="NCCL misreads an integer variable",
        why="NCCL and RCCL parse integers with strtoll and ignore the rest without a warning: "
        '"true" is 0, "8M" is 8, "010" is 8. A switch meant to be on is then off.',
        category="environment",
        order=640,
        needs=(EnvironmentFacts,),
        needs_environment=True,
    )

    def check(self, run: RunSummary, thresholds: NoThresholds) -> Iterable[Finding]:
        """Report the values that are misread; as info where no backend reads them."""
        facts = run[EnvironmentFacts]
        named = sorted(integer_variables() & facts.variables.keys())
        yield from unknown_values(self.meta, facts, named)
        misread = list(_misread(facts))
        if not misread:
            return
        first = misread[0]
        others = f"; {len(misread) - 1} more are misread" if len(misread) > 1 else ""
        summary = f"{first.name}={shortened(first.value)} is read as {first.parsed}{others}."
        if not facts.uses_nccl:
            summary += " This run did not use NCCL."
        yield self.meta.finding(
            Status.FAIL if facts.uses_nccl else Status.INFO,
            summary,
            title="" if facts.uses_nccl else "NCCL would misread a variable",
            severity=worst(m.severity for m in misread),
            cause="strtoll stops at the first character that is not a digit, without a message.",
            action="Write decimal integers: 1 and 0 for switches, bytes without a unit for sizes.",
            evidence=(_table(misread),),
            ranks=ranks_of(union(m.ranks for m in misread)),
            confidence="high",
        )


def _misread(facts: EnvironmentFacts) -> Iterator[_Misread]:
    for name, value, ranks in facts.settings():
        if name not in integer_variables() or value.strip() in ("", REDACTED):
            continue
        parsed, rest = strtoll(value)
        if rest.strip():
            meant = value.strip().lower() in _OFF_WORDS
            yield _Misread(name, value, ranks, parsed, Severity.LOW if meant else Severity.HIGH)
        elif re.fullmatch(r"\s*[+-]?0[0-9]{1,30}\s*", value) and int(value) != parsed:
            yield _Misread(name, value, ranks, parsed, Severity.MEDIUM)


def _table(misread: list[_Misread]) -> Table:
    return Table(
        (Column("variable"), Column("written"), Column("read as", "count"), Column("ranks")),
        tuple((m.name, m.value, m.parsed, written_ranks(m.ranks)) for m in misread),
    )
