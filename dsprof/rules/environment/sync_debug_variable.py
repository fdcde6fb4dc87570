"""sync-debug-variable: a switch meant for debugging is still on and serialises the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.rank_sets import RankSet, ranks_of, union, written_ranks
from dsprof.analysis.summary import RunSummary
from dsprof.files.redaction import REDACTED
from dsprof.findings.finding import Column, Finding, Severity, Status, Table, worst
from dsprof.findings.wording import capitalised, shortened
from dsprof.rules.environment.redacted_variables import unknown_values
from dsprof.rules.environment.variable_values import is_true
from dsprof.rules.reasons import NO_ENVIRONMENT
from dsprof.rules.rule import NoThresholds, Rule, RuleMeta


def _is_nonzero(value: str) -> bool:
    return value.strip() not in ("", "0")


def _is_detail(value: str) -> bool:
    return value.upper() == "DETAIL"


class _Switch(NamedTuple):
    name: str
    is_on: Callable[[str], bool]
    severity: Severity
    acts_on: str  # "any" run, a "gpu" run or an "nccl" run
    effect: str


_LAUNCHES = "every kernel launch waits for the kernel: nothing overlaps"
_WAITS = "the host blocks in every wait, so it cannot run ahead of the device"
_EVENTS = "records timing events around every collective"
_STACKS = "captures a C++ stack for every collective"
_CHECKS = "every collective is preceded by a monitored barrier and a check of shapes"

_SWITCHES = (
    _Switch("CUDA_LAUNCH_BLOCKING", _is_nonzero, Severity.CRITICAL, "gpu", _LAUNCHES),
    _Switch("HIP_LAUNCH_BLOCKING", _is_nonzero, Severity.CRITICAL, "gpu", _LAUNCHES),
    _Switch("AMD_SERIALIZE_KERNEL", _is_nonzero, Severity.CRITICAL, "gpu", _LAUNCHES),
    _Switch("AMD_SERIALIZE_COPY", _is_nonzero, Severity.HIGH, "gpu", "copies wait for each other"),
    _Switch(
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        bool,
        Severity.CRITICAL,
        "gpu",
        "every tensor is allocated by the driver, which synchronises the device",
    ),
    _Switch("TORCH_NCCL_BLOCKING_WAIT", is_true, Severity.HIGH, "nccl", _WAITS),
    _Switch("NCCL_BLOCKING_WAIT", is_true, Severity.HIGH, "nccl", _WAITS),
    _Switch("TORCH_DISTRIBUTED_DEBUG", _is_detail, Severity.HIGH, "any", _CHECKS),
    _Switch(
        "TORCH_NCCL_NAN_CHECK",
        is_true,
        Severity.MEDIUM,
        "nccl",
        "reads every input of every collective once more",
    ),
    _Switch(
        "NCCL_CHECK_POINTERS",
        _is_nonzero,
        Severity.MEDIUM,
        "nccl",
        "checks every pointer of every call",
    ),
    _Switch(
        "NCCL_CHECK_MODE",
        lambda value: value.upper().startswith("DEBUG"),
        Severity.MEDIUM,
        "nccl",
        "checks every call; DEBUG_GLOBAL adds an all-gather to each",
    ),
    _Switch(
        "NCCL_DEBUG",
        lambda value: value.upper() == "TRACE",
        Severity.MEDIUM,
        "nccl",
        "writes log lines for every call",
    ),
    _Switch("TORCH_NCCL_DESYNC_DEBUG", is_true, Severity.LOW, "nccl", _EVENTS),
    _Switch("NCCL_DESYNC_DEBUG", is_true, Severity.LOW, "nccl", _EVENTS),
    _Switch("TORCH_NCCL_ENABLE_TIMING", is_true, Severity.LOW, "nccl", _EVENTS),
    _Switch("NCCL_ENABLE_TIMING", is_true, Severity.LOW, "nccl", _EVENTS),
    _Switch("TORCH_FR_CPP_STACK", is_true, Severity.LOW, "nccl", _STACKS),
    _Switch("TORCH_NCCL_TRACE_CPP_STACK", is_true, Severity.LOW, "nccl", _STACKS),
    _Switch(
        "TORCH_CPP_LOG_LEVEL",
        lambda value: value.upper() == "INFO",
        Severity.LOW,
        "any",
        "writes log lines for every collective",
    ),
)

_SET_LEVEL = _Switch(
    "torch.distributed.set_debug_level", lambda value: True, Severity.HIGH, "any", _CHECKS
)

_CALL_SUBSYSTEMS = {"ALL", "CALL", "COLL", "TUNING"}

_LOG_PER_CALL = _Switch(
    "NCCL_DEBUG_SUBSYS",
    lambda value: bool(_CALL_SUBSYSTEMS & {part.strip() for part in value.upper().split(",")}),
    Severity.MEDIUM,
    "nccl",
    "with NCCL_DEBUG=INFO, writes log lines for every call",
)


class _Use(NamedTuple):
    switch: _Switch
    value: str
    ranks: RankSet


class SyncDebugVariable:
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
    thresholds = NoThresholds()

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
        yield from unknown_values(self.meta, facts, [switch.name for switch in _SWITCHES])
        if acting := [use for use in uses if _acts(use.switch, facts)]:
            names = [*dict.fromkeys(use.switch.name for use in acting)]
            several = len(names) > 1
            problem = f"{' and '.join(names)} {'are' if several else 'is'} on during the run"
            yield self.meta.finding(
                Status.FAIL,
                f"{problem}.",
                severity=worst(use.switch.severity for use in acting),
                cause=f"{acting[0].switch.name}={shortened(acting[0].value)}: "
                f"{acting[0].switch.effect}.",
                problem=problem,
                fix="Switch them off" if several else "Switch it off and measure again",
                action=f"{_remedy(acting)} and measure again.",
                evidence=(_table(acting),),
                ranks=ranks_of(union(use.ranks for use in acting)),
                confidence="high",
            )
        if inert := [use for use in uses if not _acts(use.switch, facts)]:
            idle = list(dict.fromkeys(use.switch.name for use in inert))
            verb = "has" if len(idle) == 1 else "have"
            yield self.meta.finding(
                Status.INFO,
                f"{', '.join(idle)} {verb} no effect on this device or backend.",
                title="A debugging switch is set but has no effect here",
                evidence=(_table(inert),),
            )


def _uses(facts: EnvironmentFacts) -> Iterator[_Use]:
    detailed = union(
        ranks
        for value, ranks in facts.variables.get("TORCH_DISTRIBUTED_DEBUG", {}).items()
        if _is_detail(value)
    )
    if wrapped := facts.checked & ~detailed:
        yield _Use(_SET_LEVEL, "DETAIL", wrapped)
    yield from _variables(facts)


def _variables(facts: EnvironmentFacts) -> Iterator[_Use]:
    for switch in _SWITCHES:
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


RULE: Rule = SyncDebugVariable()
