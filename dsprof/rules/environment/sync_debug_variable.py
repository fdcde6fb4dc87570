"""sync-debug-variable: a switch meant for debugging is still on and serialises the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.rank_sets import RankSet, ranks_of, union, written_ranks
from dsprof.analysis.summary import RunSummary
from dsprof.files.redaction import REDACTED
from dsprof.files.tables import rows
from dsprof.findings.finding import Column, Finding, Severity, Status, Table, worst
from dsprof.findings.wording import capitalised, shortened
from dsprof.rules.environment.redacted_variables import unknown_values
from dsprof.rules.environment.variable_values import is_true
from dsprof.rules.reasons import NO_ENVIRONMENT
from dsprof.rules.rule import NoThresholds, Rule, RuleMeta


class _Switch(NamedTuple):
    """A row of debug_switches.csv."""

    name: str
    on: str  # a name of `_TESTS`, or a pattern of the value in capitals
    severity: Severity
    acts_on: str  # "any" run, a "gpu" run or an "nccl" run
    effect: str

    def is_on(self, value: str) -> bool:
        """Whether a value switches it on."""
        if self.on in _TESTS:
            return _TESTS[self.on](value)
        return fnmatchcase(value.upper(), self.on)


_PER_CALL = {"ALL", "CALL", "COLL", "TUNING"}
_TESTS: Mapping[str, Callable[[str], bool]] = {
    "set": bool,
    "true": is_true,
    "nonzero": lambda value: value.strip() not in ("", "0"),
    "per call": lambda value: any(part.strip() in _PER_CALL for part in value.upper().split(",")),
}
_SWITCHES = {
    row["name"]: _Switch(**row | {"severity": Severity(row["severity"])})  # type: ignore[arg-type]
    for row in rows("rules/knowledge/debug_switches.csv")
}
_DETAIL = _SWITCHES["TORCH_DISTRIBUTED_DEBUG"]
_SET_LEVEL = _DETAIL._replace(name="torch.distributed.set_debug_level")
_LOG_PER_CALL = _Switch(
    "NCCL_DEBUG_SUBSYS",
    "per call",
    Severity.MEDIUM,
    "nccl",
    "with NCCL_DEBUG=INFO, writes log lines for every call",
)


class _Use(NamedTuple):
    switch: _Switch
    value: str
    ranks: RankSet


class SyncDebugVariable(Rule):
    """Looks for switches that serialise or slow every operation."""

    meta = RuleMeta(
        id="sync-debug-variable",
        title="No debugging switch slows the run",
        failing_title="A debugging switch slows the run",
        why="Switches that make asynchronous work synchronous are for debugging. Left on, they "
        "remove all overlap, and the measured run is not a normal one.",
        category="environment",
        order=620,
        needs=(EnvironmentFacts,),
    )

    def check(self, run: RunSummary, thresholds: NoThresholds) -> Iterable[Finding]:
        """Report the switches that are on; those that cannot act in this run as info."""
        facts = run[EnvironmentFacts]
        uses = list(_uses(facts))
        if not facts.recorded and not uses:
            text = NO_ENVIRONMENT
            if facts.logged:
                text += (
                    " The variables that NCCL logged include no such switch, but NCCL logs only "
                    "some."
                )
            yield self.meta.unknown(text)
            return
        yield from unknown_values(self.meta, facts, [*_SWITCHES])
        if acting := [use for use in uses if _acts(use.switch, facts)]:
            names = [*dict.fromkeys(use.switch.name for use in acting)]
            several = len(names) > 1
            yield self.meta.finding(
                Status.FAIL,
                f"Enabled during the run: {', '.join(names)}.",
                severity=worst(use.switch.severity for use in acting),
                cause=f"{acting[0].switch.name}={shortened(acting[0].value)}: "
                f"{acting[0].switch.effect}.",
                problem=f"{' and '.join(names)} {'are' if several else 'is'} on during the run",
                fix="Switch them off" if several else "Switch it off and measure again",
                action=f"{_remedy(acting)} and measure again.",
                evidence=(_table(acting),),
                ranks=ranks_of(union(use.ranks for use in acting)),
                confidence="high",
            )
        if inert := [use for use in uses if not _acts(use.switch, facts)]:
            idle = ", ".join(dict.fromkeys(use.switch.name for use in inert))
            yield self.meta.finding(
                Status.INFO,
                f"Set, but without effect on this device or backend: {idle}.",
                title="A debugging switch is set but has no effect here",
                evidence=(_table(inert),),
            )


def _uses(facts: EnvironmentFacts) -> Iterator[_Use]:
    detailed = union(
        ranks
        for value, ranks in facts.variables.get("TORCH_DISTRIBUTED_DEBUG", {}).items()
        if _DETAIL.is_on(value)
    )
    if wrapped := facts.checked & ~detailed:
        yield _Use(_SET_LEVEL, "DETAIL", wrapped)
    yield from _variables(facts)


def _variables(facts: EnvironmentFacts) -> Iterator[_Use]:
    for switch in _SWITCHES.values():
        for value, ranks in facts.variables.get(switch.name, {}).items():
            if value != REDACTED and switch.is_on(value):
                yield _Use(switch, value, ranks)
    informed = facts.variables.get("NCCL_DEBUG", {})
    talking = union(ranks for value, ranks in informed.items() if value.upper() == "INFO")
    for value, ranks in facts.variables.get(_LOG_PER_CALL.name, {}).items():
        if ranks & talking and _LOG_PER_CALL.is_on(value):
            yield _Use(_LOG_PER_CALL, value, ranks & talking)


def _remedy(acting: list[_Use]) -> str:
    """Say how to switch off what acts: variables, and a call that has no variable."""
    names = dict.fromkeys(use.switch.name for use in acting if use.switch is not _SET_LEVEL)
    unset = f"Unset {', '.join(names)}" if names else ""
    called = any(use.switch is _SET_LEVEL for use in acting)
    drop = "remove the call of set_debug_level(DebugLevel.DETAIL)" if called else ""
    return capitalised(", ".join(filter(None, (unset, drop))))


def _acts(switch: _Switch, facts: EnvironmentFacts) -> bool:
    return {"any": True, "gpu": facts.uses_gpu, "nccl": facts.uses_nccl}[switch.acts_on]


def _table(uses: list[_Use]) -> Table:
    return Table(
        (Column("variable"), Column("value"), Column("ranks"), Column("what it does")),
        tuple((u.switch.name, u.value, written_ranks(u.ranks), u.switch.effect) for u in uses),
    )
