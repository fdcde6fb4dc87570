"""bootstrap-interface: a variable names interfaces that are not there or lead nowhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.rank_sets import RankSet, named_ranks, ranks_of, union, written_ranks
from dsprof.analysis.summary import RunSummary
from dsprof.files.redaction import REDACTED
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import shortened, some
from dsprof.rules.environment.platform import answer, several_hosts
from dsprof.rules.environment.redacted_variables import unknown_values
from dsprof.rules.environment.variable_values import select
from dsprof.rules.hardware.hosts import LOCAL_INTERFACES
from dsprof.rules.knowledge.releases import version
from dsprof.rules.rule import NoThresholds, Rule, RuleMeta

_ONLY_RUNNING = (2, 28, 3)
"""From this release on NCCL takes only interfaces that are up and running."""

_LISTED = 64
"""dsprof lists as many devices; where there are more, one may be missing from the list."""


class _Variable(NamedTuple):
    name: str
    backend: str
    has_prefixes: bool  # "eth" for eth0, "=eth0" for only that, "^eth0" for all others
    needs_all: bool = False  # each interface that is named must be there


_VARIABLES = (
    _Variable("NCCL_SOCKET_IFNAME", "nccl", True),
    _Variable("NCCL_OOB_NET_IFNAME", "nccl", True),
    _Variable("GLOO_SOCKET_IFNAME", "gloo", False, needs_all=True),
    _Variable("HCCL_SOCKET_IFNAME", "hccl", True),
    _Variable("CCL_KVS_IFACE", "oneccl", False),
)


class _Choice(NamedTuple):
    """The interfaces of some ranks that a value selects."""

    name: str
    value: str
    ranks: RankSet
    selected: tuple[str, ...]
    interfaces: tuple[str, ...]
    lacking: tuple[str, ...]  # names of which each must be there, and that are not


class BootstrapInterface(Rule):
    """Compares the interfaces that variables name with those that the hosts have."""

    meta = RuleMeta(
        id="bootstrap-interface",
        title="The bootstrap interfaces exist",
        failing_title="The bootstrap interface is unusable",
        why="Ranks find each other over an ordinary interface before they use a fast network. A "
        "missing interface ends the run at its start; one inside the host makes it hang.",
        category="environment",
        order=740,
        needs=(EnvironmentFacts, Run),
        needs_environment=True,
    )

    def check(self, run: RunSummary, thresholds: NoThresholds) -> Iterable[Finding]:
        """Report names without an interface, and local interfaces between hosts."""
        facts = run[EnvironmentFacts]
        used = [one for one in _VARIABLES if answer(one.backend, facts)]
        choices = [choice for variable in used for choice in _choices(variable, facts)]
        yield from unknown_values(self.meta, facts, [variable.name for variable in used])
        if any(_is_incomplete(choice) for choice in choices):
            yield self.meta.unknown("Unknown: not all interfaces of the hosts are known.")
        known = [choice for choice in choices if not _is_incomplete(choice)]
        if absent := [one for one in known if not one.selected or one.lacking]:
            yield self._absent(absent)
        present = (choice for choice in known if choice not in absent)
        local = [one for one in present if one.selected[0].startswith(LOCAL_INTERFACES)]
        several = several_hosts(facts)
        if several and _is_of_one(facts) and not run[Run].selection.has_all_ranks:
            several = None  # launchers count ranks by agent, of which a host may have two
        if local and several:
            yield self._local(local)
        elif local and several is None:
            text = (
                f"{_written(local[0])} selects {local[0].selected[0]}, which reaches no other "
                "host; whether ranks are on several hosts is unknown."
            )
            yield self.meta.unknown(text, evidence=(_table(local),))
        if wide := [choice for choice in known if _is_wide(choice)]:
            first = wide[0]
            yield self.meta.finding(
                Status.INFO,
                f"{_written(first)} is a name prefix: it selects {some(first.selected, 8)}.",
                title="A variable selects more interfaces than it names",
                action="Write = before a name to select only that interface.",
                evidence=(_table(wide),),
            )

    def _absent(self, choices: list[_Choice]) -> Finding:
        first, ranks = choices[0], union(choice.ranks for choice in choices)
        return self.meta.finding(
            Status.FAIL,
            f"{_written(first)} on {named_ranks(ranks)} names "
            + (
                f"{some(first.lacking, 8)}, which the host does not have."
                if first.selected
                else "no interface of the host that can be used."
            ),
            severity=Severity.CRITICAL,
            cause=f"The host has {some(first.interfaces, 8)}.",
            action=f"Set {first.name} to an interface that connects the hosts, or unset it.",
            ranks=ranks_of(ranks),
            evidence=(_table(choices),),
            confidence="high",
        )

    def _local(self, choices: list[_Choice]) -> Finding:
        first, ranks = choices[0], union(choice.ranks for choice in choices)
        action = f"Set {first.name} to the interface that connects the hosts."
        if first.value.startswith("^"):
            action = f"Set {first.name}=^docker,lo,veth, or name the interface between the hosts."
        return self.meta.finding(
            Status.FAIL,
            f"{_written(first)} on {named_ranks(ranks)} selects {first.selected[0]}, which reaches "
            "no other host.",
            severity=Severity.CRITICAL,
            cause="The first interface that a value selects is taken, and lo comes before others.",
            action=action,
            ranks=ranks_of(ranks),
            evidence=(_table(choices),),
            confidence="medium",
        )


def _choices(variable: _Variable, facts: EnvironmentFacts) -> Iterator[_Choice]:
    for value, ranks in sorted(facts.variables.get(variable.name, {}).items()):
        for devices, holders in facts.devices.get("network", {}).items():
            if value.strip() not in ("", REDACTED) and ranks & holders:
                interfaces = _interfaces(devices, but_down=_only_running(variable, facts))
                selected = select(value.strip(), interfaces, variable.has_prefixes)
                named = [name.strip() for name in value.split(",")] if variable.needs_all else []
                lacking = tuple(name for name in named if name and name not in interfaces)
                yield _Choice(variable.name, value, ranks & holders, selected, interfaces, lacking)


def _is_of_one(facts: EnvironmentFacts) -> bool:
    return len(facts.backends.get("host", {})) < 2


def _only_running(variable: _Variable, facts: EnvironmentFacts) -> bool:
    """Say whether the library is known to pass over interfaces that are down."""
    releases = facts.versions.get("nccl", {})
    return variable.backend == "nccl" and any(version(one) >= _ONLY_RUNNING for one in releases)


def _interfaces(devices: tuple[str, ...], *, but_down: bool) -> tuple[str, ...]:
    listed = [device.split() for device in devices if device.split()]
    names = [name for name, *state in listed if not (but_down and state[:1] == ["down"])]
    return ("lo", *names)


def _is_incomplete(choice: _Choice) -> bool:
    return len(choice.interfaces) < 2 or len(choice.interfaces) >= _LISTED


def _is_wide(choice: _Choice) -> bool:
    """Whether a name that an interface has is also the beginning of others' names."""
    if not choice.name.startswith(("NCCL", "HCCL")) or choice.value.startswith(("^", "=")):
        return False
    names = [name.strip() for name in choice.value.split(",")]
    named = [name for name in names if name in choice.selected]
    return any(
        one != name and one.startswith(name) for name in named for one in choice.selected
    ) and not set(choice.selected) <= set(names)


def _written(choice: _Choice) -> str:
    return f"{choice.name}={shortened(choice.value)}"


def _table(choices: list[_Choice]) -> Table:
    columns = ("variable", "value", "ranks", "selects", "interfaces of the host")
    return Table(
        tuple(map(Column, columns)),
        tuple(
            (
                choice.name,
                choice.value,
                written_ranks(choice.ranks),
                ", ".join(choice.selected) or "none",
                ", ".join(choice.interfaces),
            )
            for choice in choices
        ),
    )
