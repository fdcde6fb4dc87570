"""unequal-hosts: ranks of one run have other versions, drivers, adapters or accelerators."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.rank_sets import RankSet, ranks_of, union
from dsprof.analysis.run.own_work import own_work_ns
from dsprof.analysis.summary import RunSummary
from dsprof.environment.machine import Accelerator, Adapter
from dsprof.files.redaction import REDACTED
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.wording import capitalised
from dsprof.rules.causes import LATE
from dsprof.rules.environment.variable_values import select
from dsprof.rules.evidence.differences import Difference, Trait, Values, summary, table
from dsprof.rules.hardware.hosts import kind_of, links
from dsprof.rules.reasons import ONE_ENVIRONMENT
from dsprof.rules.rule import Rule, RuleMeta

_Found = dict[str, RankSet]
_SLOWER = 1.05
"""A kind of host is slower if its ranks work longer by this factor."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How alike hosts must be."""

    clock_share: float = 0.9  # of the fastest CPUs' clock: CPUs of one model differ a little


class UnequalHosts(Rule):
    """Compares what ranks run and what their hosts have."""

    meta = RuleMeta(
        id="unequal-hosts",
        title="Hosts have the same software and devices",
        failing_title="Hosts have different software or devices",
        why="Ranks wait for the slowest: the host with the fewest adapters or the slowest "
        "accelerator limits all, and some version mixes never connect.",
        category="environment",
        order=710,
        needs=(EnvironmentFacts, Steps),
        needs_environment=True,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Report what differs, and what of it may be meant."""
        facts = run[EnvironmentFacts]
        if facts.recorded.bit_count() == 1:
            yield self.meta.not_applicable(ONE_ENVIRONMENT)
            return
        acting = [one for one in _TRAITS if _acts(one, facts)]
        least = thresholds.clock_share
        found = [
            Difference(one, held)
            for one in sorted(acting, key=lambda one: one.severity.order)
            if _differs(one, held := one.of(facts), least)
        ]
        if harmful := [one for one in found if one.trait.severity is not Severity.NONE]:
            yield self._differing(harmful, run[Steps])
        if rest := [one for one in found if one.trait.severity is Severity.NONE]:
            yield self.meta.finding(Status.INFO, summary(rest), evidence=(table(rest),))

    def _differing(self, found: Sequence[Difference], steps: Steps) -> Finding:
        slower = _slower(found[0].values, steps) if found[0].trait.effect in _OF_SPEED else ()
        return self.meta.finding(
            Status.FAIL,
            summary(found),
            severity=found[0].trait.severity,
            cause=f"{capitalised(found[0].trait.effect)}.",
            action=(
                "Give all hosts the same image and driver, and exclude hosts that lack a device or "
                "a port."
            ),
            ranks=slower or found[0].ranks,
            evidence=(table(found),),
            restates=LATE if slower else "",
            confidence="medium",
        )


def _slower(values: Values, steps: Steps) -> tuple[int, ...]:
    """Return the ranks with a value whose ranks work longer; none where all work as long."""
    own_ns = own_work_ns(steps, (rank for ranks in values.values() for rank in ranks_of(ranks)))
    if not own_ns:
        return ()
    usual_ns = [median(own_ns[rank] for rank in ranks_of(ranks)) for ranks in values.values()]
    limit_ns = _SLOWER * min(usual_ns)
    late = [ranks for ranks, ns in zip(values.values(), usual_ns, strict=True) if ns > limit_ns]
    return ranks_of(union(late))


def _acts(trait: Trait, facts: EnvironmentFacts) -> bool:
    over_ethernet = not links(facts) - {"roce"}
    return {"any": True, "nccl": facts.uses_nccl, "tcp": over_ethernet}[trait.acts_on]


def _differs(trait: Trait, held: Values, least: float) -> bool:
    if trait.amount is None or not trait.may_differ or len(held) < 2:
        return len(held) > 1
    amounts = [trait.amount(value) for value in held]
    return min(amounts) < least * max(amounts)


def _version(name: str) -> Callable[[EnvironmentFacts], Values]:
    return lambda facts: facts.versions.get(name, {})


def _machine(name: str) -> Callable[[EnvironmentFacts], Values]:
    return lambda facts: facts.machine.get(name, {})


def _ethernet(facts: EnvironmentFacts) -> Values:
    """Return interfaces that connections may use; those of a name that was set are not known.

    NCCL spreads over all of them, other backends take one: there only the speed counts.
    """
    variable = "NCCL_SOCKET_IFNAME" if facts.uses_nccl else "GLOO_SOCKET_IFNAME"
    if any(value and value[0] != "^" for value in facts.variables.get(variable, {})):
        return {}
    found: _Found = {}
    for text, ranks in facts.machine.get("ethernet", {}).items():
        speed = re.search(r"\d+ Mbit/s", text)
        _add(found, speed[0] if speed and not facts.uses_nccl else text, ranks)
    return found


def _governors(facts: EnvironmentFacts) -> Values:
    """Return drivers and governors; another driver with the same governor is no other."""
    held = _machine("cpu_governor")(facts)
    return held if len({value.split(" ")[-1] for value in held}) > 1 else {}


def _leading_number(text: str) -> int:
    found = re.match(r"\d{1,9}", text)
    return int(found[0]) if found else 0


def _counted(ports: str) -> int:
    """Return how many ports a description counts: 8 of `7 of infiniband, 1 of roce`."""
    return sum(int(count) for count in re.findall(r"(\d{1,9}) of ", ports))


def _ports(describe: Callable[[Sequence[Adapter]], str], facts: EnvironmentFacts) -> Values:
    """Describe the active ports of each host that NCCL may use; "" is not compared.

    Ethernet, which few hosts use for RDMA, is left out.
    """
    found: _Found = {}
    named = facts.variables.get("NCCL_IB_HCA", {})
    if REDACTED in named:  # which ports it names is not known
        return found
    for held in facts.adapters.values():
        for adapters, ranks in held.items():
            value = next((v.strip() for v, holders in named.items() if holders & ranks), "")
            if text := describe(_usable(adapters, value)):
                _add(found, text, ranks)
    return found


def _usable(adapters: tuple[Adapter, ...], value: str) -> list[Adapter]:
    usable = {one.name.split(":")[0] for one in adapters}
    usable = set(select(value, usable)) if value else usable
    active = [one for one in adapters if one.state == "ACTIVE"]
    chosen = [one for one in active if one.name.split(":")[0] in usable]
    return [one for one in chosen if kind_of(one.driver, one.link) not in ("", "roce")]


def _counts_by_network(ports: Sequence[Adapter]) -> str:
    counts = Counter(kind_of(one.driver, one.link) for one in ports)
    return ", ".join(f"{count} of {kind}" for kind, count in sorted(counts.items())) or "none"


def _slowest(ports: Sequence[Adapter]) -> str:
    rates = (one.rate.partition(" (")[0] for one in ports)  # of any width: "200 Gb/sec (4X HDR)"
    return min(rates, key=_leading_number, default="")


def _models(facts: EnvironmentFacts) -> Values:
    found: _Found = {}
    for held in facts.accelerators.values():
        for accelerators, ranks in held.items():
            _add(found, _described_models(accelerators), ranks)
    return found


def _described_models(accelerators: tuple[Accelerator, ...]) -> str:
    counts = Counter(one.name or one.vendor for one in accelerators)
    return ", ".join(f"{count} of {name}" for name, count in sorted(counts.items())) or "none"


def _add(found: _Found, text: str, ranks: RankSet) -> None:
    found[text] = found.get(text, 0) | ranks


_NEVER = "ranks with different versions may never connect, or not understand each other"
_LIMIT = "the host with the fewest limits all, or ranks wait for each other forever"
_SLOWEST = "all ranks wait for the slowest accelerator"
_IN_SPEED = "hosts differ in speed and in what they support"
_SLOW_NETWORK = "the host with the slowest network can limit all"
_SLOW_CPUS = "the host with the slowest CPUs can be late in each step"
_CHOICES = "NCCL may choose differently on each and hang; NCCL_NET_OVERHEAD makes it choose alike"
_ETHERNET = "number, speed or bonding of Ethernet interfaces"
_OF_SPEED = (_SLOWEST, _IN_SPEED, _SLOW_CPUS)
_HIGH, _MEDIUM, _LOW, _NOTE = Severity.HIGH, Severity.MEDIUM, Severity.LOW, Severity.NONE
_TRAITS = (
    Trait("NCCL version", _version("nccl"), _HIGH, _NEVER, acts_on="nccl"),
    Trait("torch version", _version("torch"), _HIGH, _NEVER),
    Trait(
        "number of active adapter ports",
        partial(_ports, _counts_by_network),
        _HIGH,
        _LIMIT,
        _counted,
        acts_on="nccl",
    ),
    Trait(
        "rate of the slowest adapter port",
        partial(_ports, _slowest),
        _MEDIUM,
        _SLOW_NETWORK,
        _leading_number,
        acts_on="nccl",
    ),
    Trait("kind or number of accelerators", _models, _MEDIUM, _SLOWEST),
    Trait("DeepSpeed version", _version("deepspeed"), _MEDIUM, _NEVER),
    Trait("CUDA version", _version("cuda"), _MEDIUM, _NEVER),
    Trait("HIP version", _version("hip"), _MEDIUM, _NEVER),
    Trait("NVIDIA driver", _machine("nvidia_driver"), _MEDIUM, _IN_SPEED),
    Trait("AMD driver", _machine("amdgpu_driver"), _MEDIUM, _IN_SPEED),
    Trait(_ETHERNET, _ethernet, _MEDIUM, _SLOW_NETWORK, acts_on="tcp"),
    Trait("CPU frequency governor", _governors, _LOW, _SLOW_CPUS),
    Trait(
        "highest CPU clock",
        _machine("cpu_clock"),
        _MEDIUM,
        _SLOW_CPUS,
        _leading_number,
        may_differ=True,
    ),
    Trait("CPU vendor", _machine("cpu_vendor"), _NOTE, _CHOICES, acts_on="nccl"),
    Trait("kernel", _machine("kernel"), _NOTE, "hosts may differ in speed"),
)
