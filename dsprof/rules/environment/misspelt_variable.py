"""misspelt-variable: a variable that no library reads, close to one that is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.rank_sets import RankSet, ranks_of, union, written_ranks
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table, worst
from dsprof.findings.wording import capitalised, remarks, some
from dsprof.rules.knowledge.near_names import NearNames
from dsprof.rules.knowledge.variables import is_known, known_names, retired_names
from dsprof.rules.rule import Rule, RuleMeta


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How like a known name an unknown one must be."""

    similarity: float = 0.86  # difflib ratio; below it an unknown name is taken as somebody's own


_CHECKED_PREFIXES = (
    *("NCCL_", "RCCL_", "OFI_NCCL_", "FI_", "CCL_", "HCCL_", "GLOO_"),
    *("TORCH_NCCL_", "TORCH_FR_", "TORCH_DISTRIBUTED_", "PYTORCH_", "CUDA_"),
)
"""Prefixes of libraries whose names are known completely enough to call one a mistake."""


class _Suspect(NamedTuple):
    name: str
    value: str
    ranks: RankSet
    instead: str
    severity: Severity


class MisspeltVariable(Rule):
    """Looks for names that were set for nothing."""

    meta = RuleMeta(
        id="misspelt-variable",
        title="No variable is misspelt",
        failing_title="A variable is set that no library reads",
        why="NCCL, libfabric and torch silently ignore names that they do not know: the "
        "intended setting is not in force.",
        category="environment",
        order=630,
        needs=(EnvironmentFacts,),
        needs_environment=True,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Report unknown names that are close to a known one, and names that are read no more."""
        facts = run[EnvironmentFacts]
        suspects = list(_suspects(facts, thresholds.similarity))
        if not suspects:
            return
        advice = {suspect.name: _advice(suspect.instead) for suspect in suspects}
        names = some(list(advice), 1)
        severity = worst(suspect.severity for suspect in suspects)
        yield self.meta.finding(
            Status.INFO if severity is Severity.NONE else Status.FAIL,
            f"No library reads {names}.",
            problem=f"No library reads {names}",
            fix=capitalised(_advice(suspects[0].instead).partition("; ")[0]),
            severity=severity,
            cause="A misspelt or retired name is ignored without a message.",
            action=remarks(advice.items()),
            evidence=(_table(suspects),),
            ranks=ranks_of(union(suspect.ranks for suspect in suspects)),
            confidence="medium",
        )


def _suspects(facts: EnvironmentFacts, similarity: float) -> Iterator[_Suspect]:
    names = {name: _instead(name, similarity) for name in facts.variables}
    for name, value, ranks in facts.settings():
        if instead := names[name]:
            yield _Suspect(name, value, ranks, instead, _severity(name, facts))


def _severity(name: str, facts: EnvironmentFacts) -> Severity:
    if "NCCL" in name and not facts.uses_nccl:
        return Severity.NONE  # nor would the name that was meant be read
    return Severity.LOW if name in retired_names() else Severity.HIGH


def _instead(name: str, similarity: float) -> str:
    """Return the name that was meant, or what to do instead; "" when nothing is wrong."""
    if name in retired_names():
        return retired_names()[name]
    if not name.startswith(_CHECKED_PREFIXES) or is_known(name):
        return ""
    return _known().nearest(name, similarity)


@cache
def _known() -> NearNames:
    return NearNames(known_names())


def _advice(instead: str) -> str:
    return f"set {instead} instead" if instead.isupper() else instead


def _table(suspects: list[_Suspect]) -> Table:
    return Table(
        (Column("variable"), Column("value"), Column("ranks"), Column("instead")),
        tuple((s.name, s.value, written_ranks(s.ranks), s.instead) for s in suspects),
    )
