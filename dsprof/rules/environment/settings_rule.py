"""Rules that are rows of `knowledge/settings.csv`: which value of which variable costs what, where.

A row says: where all questions of `where` are true, each `name` (with `*` for any characters) whose
value passes the test `when` has this `effect`, and this is the `action`; where these are empty they
are those of the row above. `limits.`, `machine.` and `versions.` before a name mean limits and
facts of the hosts and for releases; a word after `below` for the threshold of the rule that it
names. Where a question cannot be answered the verdict is unknown, and the finding names what is
missing. A variable that only a configuration file of NCCL sets counts as set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple

from dsprof.analysis.aggregates.environment import EnvironmentFacts, Facts
from dsprof.analysis.rank_sets import RankSet, named_ranks, ranks_of, union, written_ranks
from dsprof.analysis.summary import RunSummary
from dsprof.files.redaction import REDACTED
from dsprof.files.tables import rows
from dsprof.findings.finding import Column, Finding, Severity, Status, Table, worst
from dsprof.findings.wording import capitalised, shortened, size, some
from dsprof.rules.environment.platform import answer, answer_all
from dsprof.rules.environment.variable_values import matches
from dsprof.rules.reasons import NO_ENVIRONMENT
from dsprof.rules.rule import Rule

_MOST_IN_A_SENTENCE = 3

_BACKENDS = {
    "nccl": "NCCL, RCCL",
    "!nccl": "other backends",
    "hccl": "HCCL",
    "oneccl": "oneCCL",
}
"""Questions that ask for a backend, and what sentences call it."""

_HOST_NAMES = {
    "limits.shm_bytes": "the size of /dev/shm",
    "limits.memlock_bytes": "the limit of locked memory",
    "limits.stack_bytes": "the limit of the stack",
    "limits.nofile": "the limit of open files",
    "machine.nvidia_driver": "the NVIDIA driver",
    "machine.verbs_devices": "the number of devices in /dev/infiniband",
    "machine.numa_balancing": "the sysctl kernel.numa_balancing",
    "machine.iommu": "the IOMMU",
    "machine.cpu_governor": "the CPU frequency governor",
    "machine.cpu_clock": "the highest CPU clock",
    "versions.nccl": "the NCCL version",
    "versions.torch": "the torch version",
    "versions.hip": "the ROCm version",
}
"""Names of facts that rows may use, as sentences call them."""


class Setting(NamedTuple):
    """A row of the table."""

    rule: str
    name: str
    when: str
    where: tuple[str, ...]
    severity: str  # of `Severity`, or "info"
    effect: str
    action: str

    @property
    def as_severity(self) -> Severity:
        """The severity of a finding; none for what is worth knowing."""
        return Severity.NONE if self.severity == "info" else Severity(self.severity)

    @property
    def backends(self) -> list[str]:
        """The questions of `where` that ask for a backend; each row has one."""
        return [question for question in self.where if question in _BACKENDS]


class Use(NamedTuple):
    """A setting that ranks of a run have."""

    setting: Setting
    name: str
    value: str
    ranks: RankSet

    @property
    def written(self) -> str:
        """The variable as one sets it, or the fact with its value."""
        if self.name in _HOST_NAMES:
            return f"{_HOST_NAMES[self.name]} ({self.shown})"
        return f"{self.name}={shortened(self.value)}" if self.value else f"{self.name} (not set)"

    @property
    def stated(self) -> str:
        """The same as a clause."""
        if self.name in _HOST_NAMES:
            return f"{_HOST_NAMES[self.name]} is {self.shown}"
        return f"{self.written} is set" if self.value else f"{self.name} is not set"

    @property
    def shown(self) -> str:
        """The value for people."""
        if self.name.startswith("limits.") and self.value == "-1":
            return "unlimited"
        if self.name.endswith("_bytes"):
            return size(int(self.value))
        return self.value or "not set"


class SettingsRule(Rule):
    """Looks for the settings that the table lists under the id of the rule."""

    def check(self, run: RunSummary, thresholds: Any) -> Iterable[Finding]:
        """Report what costs something here, what is worth knowing, and what is unknown."""
        facts = run[EnvironmentFacts]
        if not facts.recorded and not facts.logged:
            yield self.meta.unknown(NO_ENVIRONMENT)
            return
        settings = [setting for setting in table() if setting.rule == self.meta.id]
        if not any(answer(one, facts) for setting in settings for one in setting.backends):
            known = ", ".join(sorted({_BACKENDS[b] for s in settings for b in s.backends}))
            used = (
                ", ".join(filter(None, facts.backends.get("backend", {})))
                or "no backend that is known"
            )
            yield self.meta.not_applicable(
                f"This rule knows settings of {known}; this run uses {used}."
            )
            return
        uses = [use for setting in settings for use in _uses(setting, facts, thresholds)]
        said = {use: _answered(use, facts) for use in uses}
        here = [use for use in uses if said[use][0]]
        for alike in _alike(use for use in here if use.setting.severity != "info"):
            yield self._failed(alike)
        if notes := [use for use in here if use.setting.severity == "info"]:
            yield self._noted(notes)
        doubtful = {use: missing for use, (is_here, missing) in said.items() if is_here is None}
        if doubtful:
            yield self._doubted(doubtful)
        if not facts.recorded and not here and not doubtful:
            yield self.meta.unknown(
                "The variables that NCCL logged include no such setting, but NCCL logs only some."
            )

    def _failed(self, uses: list[Use]) -> Finding:
        ranks = union(use.ranks for use in uses)
        return self.meta.finding(
            Status.FAIL,
            _sentence(f"{_listed(use.stated for use in uses)} on {named_ranks(ranks)}"),
            severity=worst(use.setting.as_severity for use in uses),
            cause=_sentence(uses[0].setting.effect),
            action=uses[0].setting.action,
            evidence=(_table(uses),),
            ranks=ranks_of(ranks),
            confidence="medium",
        )

    def _noted(self, uses: list[Use]) -> Finding:
        effects = [f"{use.written}: {use.setting.effect}" for use in uses[:_MOST_IN_A_SENTENCE]]
        more = len(uses) - len(effects)
        return self.meta.finding(
            Status.INFO,
            _sentence("; ".join(effects) + (f"; and {more} more" if more else "")),
            action=" ".join(dict.fromkeys(use.setting.action for use in uses)),
            evidence=(_table(uses),),
            ranks=ranks_of(union(use.ranks for use in uses)),
        )

    def _doubted(self, uses: dict[Use, str]) -> Finding:
        missing = " and ".join(dict.fromkeys(uses.values()))
        if named := [use for use in uses if use.value]:
            uncertain = _listed(use.written for use in named)
            doubt = f"whether {uncertain} costs anything here ({named[0].setting.effect})"
        else:
            doubt = "whether this platform requires settings that are missing"
        text = f"Unknown: {doubt}. Not known: {missing}."
        return self.meta.unknown(text, evidence=(_table(list(uses)),))


@cache
def table() -> tuple[Setting, ...]:
    """Return one setting for each name in the table."""
    found: list[Setting] = []
    for row in rows("rules/knowledge/settings.csv"):
        effect = row["effect"] or found[-1].effect
        action = row["action"] or found[-1].action
        where = tuple(row["where"].split())
        for name in row["name"].split():
            one = (row["rule"], name, row["when"], where, row["severity"], effect, action)
            found.append(Setting(*one))
    return tuple(found)


def failing(facts: EnvironmentFacts) -> dict[str, Setting]:
    """Return the variables of which rows of the table fail for a value: the most severe row."""
    found: dict[str, Setting] = {}
    for setting in table():
        name = setting.name
        if setting.severity == "info" or name not in facts.variables:
            continue
        if any(use.value and _answered(use, facts)[0] for use in _uses(setting, facts, None)):
            found[name] = min(
                found.get(name, setting), setting, key=lambda one: one.as_severity.order
            )
    return found


def asked_of(setting: Setting, thresholds: Any) -> str:
    """Return the test of a row with the number of the threshold that it names."""
    word, _, limit = setting.when.partition(" ")
    named = word == "below" and limit.isidentifier()
    return f"below {getattr(thresholds, limit)}" if named else setting.when


def _uses(setting: Setting, facts: EnvironmentFacts, thresholds: Any) -> Iterator[Use]:
    test = asked_of(setting, thresholds)
    names = [setting.name]
    if "*" in setting.name:
        names = sorted(name for name in facts.variables if fnmatchcase(name, setting.name))
    for name in names:
        for value, ranks in sorted(_values(name, facts).items()):
            if matches(test, value) or (value == REDACTED and test != "unset"):
                yield Use(setting, name, value, ranks)


def _answered(use: Use, facts: EnvironmentFacts) -> tuple[bool | None, str]:
    """Say whether a setting costs something here; None: what is named is not known."""
    is_here, missing = answer_all(use.setting.where, facts)
    if is_here is not False and use.value == REDACTED and use.setting.when != "set":
        return None, f"the value of {use.name}, which was redacted"
    return is_here, missing


def _values(name: str, facts: EnvironmentFacts) -> dict[str, RankSet]:
    """Return the values of a variable, "" on ranks that do not set it; or those of a host fact."""
    if name in _HOST_NAMES:
        kind, _, fact = name.partition(".")
        known: dict[str, Facts[str, Any]] = {"limits": facts.limits, "machine": facts.machine}
        of_kind = known.get(kind, facts.versions)
        return {str(value): ranks for value, ranks in of_kind.get(fact, {}).items()}
    held = dict(facts.variables.get(name, {}))
    for (_, listed), values in facts.files.items():
        if listed == name:
            for value, ranks in values.items():
                if free := ranks & ~union(held.values()):
                    held[value] = held.get(value, 0) | free
    if unset := facts.recorded & ~union(held.values()):
        held[""] = held.get("", 0) | unset
    return held


def _alike(uses: Iterable[Use]) -> list[list[Use]]:
    """Put together what has the same effect and the same remedy."""
    groups: dict[tuple[str, str], list[Use]] = {}
    for use in uses:
        groups.setdefault((use.setting.effect, use.setting.action), []).append(use)
    return list(groups.values())


def _listed(said: Iterable[str]) -> str:
    return some(list(dict.fromkeys(said)), _MOST_IN_A_SENTENCE)


def _sentence(text: str) -> str:
    return f"{capitalised(text)}."


def _table(uses: list[Use]) -> Table:
    columns = ("setting", "value", "ranks", "what it does", "what to do")
    return Table(
        tuple(map(Column, columns)),
        tuple(
            (
                _HOST_NAMES.get(use.name, use.name),
                use.shown,
                written_ranks(use.ranks),
                use.setting.effect,
                use.setting.action,
            )
            for use in uses
        ),
    )
