"""network-differs-across-ranks: ranks of one run chose different ways to communicate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dsprof.analysis.aggregates.logs import Logs
from dsprof.analysis.rank_sets import RankSet, named_ranks, ranks_of, union
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.wording import capitalised, shortened, some
from dsprof.rules.evidence.differences import Difference, Trait, Values, summary, table
from dsprof.rules.hardware.hosts import LOCAL_INTERFACES
from dsprof.rules.reasons import NO_NCCL_LOG
from dsprof.rules.rule import NoThresholds, Rule, RuleMeta
from dsprof.trace.rank_log import RankLog


def _said(of: Callable[[RankLog], str]) -> Callable[[Logs], Values]:
    """Return the ranks that say each value; "" is to say nothing."""

    def values(logs: Logs) -> Values:
        found: dict[str, RankSet] = {}
        for rank, log in logs.ranks.items():
            if value := of(log):
                found[value] = found.get(value, 0) | 1 << rank
        return found

    return values


def _plugin(log: RankLog) -> str:
    """Say whether there is one; the lines that name it name its file, its version or itself."""
    names = log.values("network plugin")
    return "" if not names else "none" if set(names) == {"none"} else "found"


def _devices(log: RankLog) -> str:
    values = log.values("network devices")
    return str(max(len(value.split()) for value in values)) if values else ""


def _direct(log: RankLog) -> str:
    paths = [path for path in log.values("path") if path.startswith("NET/")]
    if not paths:
        return ""
    direct = [path.endswith("/GDRDMA") for path in paths]
    return "with GPUDirect RDMA" if all(direct) else "some without" if any(direct) else "without"


def _all(kind: str) -> Callable[[RankLog], str]:
    return lambda log: " ".join(sorted(log.values(kind)))


_NO_COMMUNICATOR = "communicators do not form"
_FOREVER = "ranks wait for each other forever"
_FEWEST = "the rank with the fewest limits all"
_COPIES = "one side copies through host memory"
_TRAITS = (  # the highest severity first
    Trait("NCCL version", _said(_all("version")), Severity.CRITICAL, _NO_COMMUNICATOR),
    Trait("network plugin", _said(_plugin), Severity.CRITICAL, _FOREVER),
    Trait("network", _said(_all("network")), Severity.CRITICAL, _FOREVER),
    Trait("number of network devices", _said(_devices), Severity.MEDIUM, _FEWEST, int),
    Trait("GPUDirect RDMA", _said(_direct), Severity.MEDIUM, _COPIES),
)


class NetworkDiffersAcrossRanks(Rule):
    """Compares what ranks say of their version, plugin, network and devices."""

    meta = RuleMeta(
        id="network-differs-across-ranks",
        title="Ranks use the same network devices and plugins",
        failing_title="Ranks use different network devices or plugins",
        why="Ranks with different plugins or networks never connect, and the run hangs without "
        "an error. A host with fewer devices slows all others.",
        category="communication",
        order=40,
        needs=(Logs,),
    )

    def check(self, run: RunSummary, thresholds: NoThresholds) -> Iterable[Finding]:
        """Report what differs, and interfaces which reaches no other host."""
        logs = run[Logs]
        if not logs.is_nccl:
            yield self.meta.not_applicable(NO_NCCL_LOG)
            return
        if len(logs.ranks) < 2:
            yield self.meta.not_applicable("Not applicable: only one rank is in the log.")
            return
        found = [Difference(one, said) for one in _TRAITS if len(said := one.of(logs)) > 1]
        if found:
            yield self._differing(found)
        local = {
            name: ranks
            for name, ranks in logs.values("bootstrap interface").items()
            if name.startswith(LOCAL_INTERFACES)
        }
        if local and logs.has_several_hosts:
            yield self._unreachable(local)

    def _differing(self, found: Sequence[Difference]) -> Finding:
        return self.meta.finding(
            Status.FAIL,
            summary(found),
            severity=found[0].trait.severity,
            cause="Hosts have different images, libraries, devices or variables.",
            action="Give all hosts the same image and NCCL variables, and the same LD_LIBRARY_PATH "
            "(libnccl, libnccl-net.so).",
            ranks=found[0].ranks,
            evidence=(table(found),),
            confidence="medium",
        )

    def _unreachable(self, local: dict[str, RankSet]) -> Finding:
        interfaces = some([shortened(name) for name in sorted(local)])
        return self.meta.finding(
            Status.FAIL,
            f"{capitalised(named_ranks(union(local.values())))} offered other hosts the bootstrap "
            f"interface {interfaces}, which they cannot reach.",
            title="Ranks offer a bootstrap interface that other hosts cannot reach",
            problem=f"Other hosts cannot reach the interface {interfaces}",
            fix="Set NCCL_SOCKET_IFNAME to the right one",
            severity=Severity.HIGH,
            cause="NCCL took the first interface that is up.",
            action="Set NCCL_SOCKET_IFNAME to the interface that connects the hosts.",
            ranks=ranks_of(union(local.values())),
            confidence="high",
        )
