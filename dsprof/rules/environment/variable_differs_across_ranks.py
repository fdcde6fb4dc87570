"""variable-differs-across-ranks: a setting that is not the same everywhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from dsprof.analysis.aggregates.environment import EnvironmentFacts, Facts
from dsprof.analysis.rank_sets import RankSet, ranks_of, union, written_ranks
from dsprof.analysis.summary import RunSummary
from dsprof.files.redaction import REDACTED, is_secret_name
from dsprof.findings.finding import Column, Finding, Severity, Status, Table, worst
from dsprof.findings.wording import some
from dsprof.rules.environment.settings_rule import Setting, failing
from dsprof.rules.knowledge.deepspeed.keys import keys as deepspeed_keys
from dsprof.rules.knowledge.variables import agreement
from dsprof.rules.reasons import NO_ENVIRONMENT, ONE_ENVIRONMENT
from dsprof.rules.rule import NoThresholds, Rule, RuleMeta

_HANGS = frozenset(("NCCL_ALGO", "NCCL_PROTO"))
"""Public reports of hangs exist for these; of the others the effect is inferred from source."""

_FORWARDED = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL")
"""Prefixes that DeepSpeed's multi-node launchers export; NCCL on CUDA only."""

_EXPECTED = {"must": "must agree", "should": "should agree", "": "not known"}


class _Difference(NamedTuple):
    name: str
    values: dict[str, RankSet]  # "" where it is not set
    expected: str  # "must", "should", "": not known

    @property
    def is_missing_somewhere(self) -> bool:
        return "" in self.values

    @property
    def is_hidden(self) -> bool:
        """Whether all values were redacted: digests differ."""
        return all(REDACTED in value for value in self.values)

    @property
    def is_read(self) -> bool:
        """Whether DeepSpeed reads this key and trains by it; others differ without harm."""
        return self.name in deepspeed_keys() and not is_secret_name(self.name)


class VariableDiffersAcrossRanks(Rule):
    """Compares the environment and the DeepSpeed configuration of all ranks."""

    meta = RuleMeta(
        id="variable-differs-across-ranks",
        title="Ranks agree in the variables that matter",
        failing_title="Ranks run with different settings",
        why="Each rank chooses algorithm, protocol and buffer sizes from its own variables. Where "
        "they differ, the slowest choice delays all ranks, and some choices hang.",
        category="environment",
        order=650,
        needs=(EnvironmentFacts,),
    )

    def check(self, run: RunSummary, thresholds: NoThresholds) -> Iterable[Finding]:
        """Report differing variables and DeepSpeed keys; not those that differ by design."""
        facts = run[EnvironmentFacts]
        known = facts.recorded | facts.logged
        if not known:
            yield self.meta.unknown(NO_ENVIRONMENT)
            return
        if known.bit_count() == 1:
            yield self.meta.not_applicable(ONE_ENVIRONMENT)
            return
        costly = failing(facts)
        differing = list(_differences(facts))
        told = [d for d in differing if _is_told(d, costly, facts)]
        differences = [d for d in differing if d not in told]
        if not facts.recorded and not differing:
            yield self.meta.unknown(
                "The variables that NCCL logged agree, but NCCL logs only some."
            )
            return
        severities = {d.name: _severity(d, facts) for d in differences}
        harmful = [d for d in differences if severities[d.name] is not Severity.NONE]
        if harmful:
            severity = worst(severities[d.name] for d in harmful)
            yield self._variables(harmful, severity, costly)
        elif told:
            rules = ", ".join(sorted({costly[d.name].rule for d in told}))
            differ = "differs" if len(told) == 1 else "differ"
            yield self.meta.not_applicable(
                f"{_listed(told)} {differ} across ranks. Covered by {rules}."
            )
        if rest := [d for d in differences if severities[d.name] is Severity.NONE]:
            which = f"{len(rest)} more" if harmful else _listed(rest)
            differ = "differs" if len(rest) == 1 else "differ"
            summary = f"{which} {differ} across ranks{_hint(rest)}, without known harm."
            yield self.meta.finding(Status.INFO, summary, evidence=(_table(rest),))
        keys = [
            _Difference(name, values, "must") for name, values in facts.differing_keys().items()
        ]
        if read := [key for key in keys if key.is_read or not key.is_hidden]:
            yield self._configuration(read)
        if unread := [key for key in keys if key not in read]:
            summary = (
                f"DeepSpeed keys of unknown effect differ across ranks: {_listed(unread)}"
                f"{_hint(unread)}."
            )
            yield self.meta.finding(Status.INFO, summary, evidence=(_table(unread),))
        if hidden := [*_not_comparable(facts)]:
            yield self.meta.unknown(
                f"Unknown: whether ranks agree in {some(hidden)}. The values were redacted."
            )

    def _variables(
        self, found: list[_Difference], severity: Severity, costly: Collection[str]
    ) -> Finding:
        # No rank should have what another rule says to unset.
        lost = [d.name for d in found if d.is_missing_somewhere and d.name not in costly]
        action = "Give all ranks the same value."
        if lost:
            forwarded = ", ".join(_FORWARDED)
            action = (
                f"Set {', '.join(lost)} on every node: put NAME=value lines into ~/.deepspeed_env, "
                "or set them in the job script. DeepSpeed's multi-node launchers forward only "
                f"names that begin with {forwarded} (NCCL on CUDA only)."
            )
        return self.meta.finding(
            Status.FAIL,
            f"{_listed(found)} differ{'s' if len(found) == 1 else ''} across ranks{_hint(found)}.",
            severity=severity,
            cause="The launcher did not pass them on to all nodes." if lost else "",
            action=action,
            evidence=(_table(found),),
            ranks=_outliers(found),
            confidence="medium",
        )

    def _configuration(self, found: list[_Difference]) -> Finding:
        return self.meta.finding(
            Status.FAIL,
            f"The DeepSpeed configuration differs across ranks: {_listed(found)}{_hint(found)}.",
            severity=Severity.HIGH,
            cause="Ranks read different configuration files, or build their configuration from "
            "values that differ.",
            action="Give all ranks the same configuration file.",
            evidence=(_table(found),),
            ranks=_outliers(found),
            confidence="high",
        )


def _differences(facts: EnvironmentFacts) -> Iterator[_Difference]:
    for name, values in facts.differing(facts.variables_apart).items():
        expected = agreement(name)
        if expected != "may":
            yield _Difference(name, values, expected)


def _is_told(found: _Difference, costly: Mapping[str, Setting], facts: EnvironmentFacts) -> bool:
    """Whether another rule says, at least as severely, that no rank should have such a value."""
    row = costly.get(found.name)
    return row is not None and row.as_severity.order <= _severity(found, facts).order


def _not_comparable(facts: EnvironmentFacts) -> Iterator[str]:
    """Yield what several ranks have and none may write, if they ought to agree in it."""
    for name in _not_compared(facts, facts.variables_apart, facts.digests):
        if agreement(name) in ("must", "should"):
            yield name
    for name in _not_compared(facts, facts.written_apart, facts.written_digests):
        if name in deepspeed_keys():
            yield name


def _not_compared(
    facts: EnvironmentFacts, found: Facts[str, str], digests: Facts[str, str]
) -> Iterator[str]:
    """Yield what is redacted on several ranks and not known to differ, nor to agree."""
    differing = facts.differing(found)
    for name, values in found.items():
        hidden = union(ranks for value, ranks in values.items() if REDACTED in value)
        is_equal = any(hidden & ~ranks == 0 for ranks in digests.get(name, {}).values())
        if hidden.bit_count() > 1 and not is_equal and name not in differing:
            yield name


def _severity(found: _Difference, facts: EnvironmentFacts) -> Severity:
    if "NCCL" in found.name and not facts.uses_nccl:
        return Severity.NONE
    if found.name in _HANGS:
        return Severity.CRITICAL
    return {"must": Severity.HIGH, "should": Severity.MEDIUM}.get(found.expected, Severity.NONE)


def _hint(found: list[_Difference]) -> str:
    return " (values redacted)" if any(d.is_hidden for d in found) else ""


def _listed(found: list[_Difference]) -> str:
    return some([d.name for d in found])


def _outliers(found: list[_Difference]) -> tuple[int, ...]:
    """Return the ranks that do not have the commonest value of each variable.

    Of several that are as common, the one of the lowest rank: not the one that was read first.
    """
    outliers = 0
    for difference in found:
        *rare, _ = sorted(
            difference.values.values(), key=lambda held: (held.bit_count(), -(held & -held))
        )
        for ranks in rare:
            outliers |= ranks
    return ranks_of(outliers)


def _table(found: list[_Difference]) -> Table:
    return Table(
        (Column("name"), Column("value"), Column("ranks"), Column("ranks should")),
        tuple(
            (d.name, value or "not set", written_ranks(ranks), _EXPECTED[d.expected])
            for d in found
            for value, ranks in sorted(d.values.items())
        ),
    )
