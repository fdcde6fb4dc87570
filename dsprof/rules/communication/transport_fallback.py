"""transport-fallback: NCCL takes a slower path than the machine has."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.logs import Logs
from dsprof.analysis.rank_sets import RankSet, named_ranks, rank_set, ranks_of, union, written_ranks
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import capitalised, ranks_do, some
from dsprof.rules.hardware.hosts import kind_of
from dsprof.rules.reasons import NO_NCCL_LOG
from dsprof.rules.rule import NoThresholds, Rule, RuleMeta
from dsprof.trace.rank_log import RankLog

_VERBS_DEVICE = re.compile(r"\S+:\d+/(?:IB|RoCE)\b")
_NETWORKS = ("infiniband", "efa", "slingshot")
_FAST_PROVIDERS = ("efa", "cxi", "verbs", "psm", "opx")
_SLOW_PROVIDERS = ("tcp", "sockets")
_TELLING = (
    *("network", "path", "network devices", "network devices for TCP", "no network device"),
    *("libfabric provider", "libfabric failure"),
)
_SHOWN = (*_TELLING, "network plugin", "GPUDirect RDMA", "modelled link")


class TransportFallback(Rule):
    """Judges how ranks reach each other by what NCCL says of it.

    A slow path is a problem only where a faster one is seen; otherwise it is only stated.
    """

    meta = RuleMeta(
        id="transport-fallback",
        title="NCCL uses the fastest path that its log shows",
        failing_title="NCCL falls back to a slower path",
        why="NCCL falls back to sockets or host memory without a warning, and training then "
        "runs at a fraction of the hardware's speed.",
        category="communication",
        order=50,
        needs=(Logs, EnvironmentFacts),
    )

    def check(self, run: RunSummary, thresholds: NoThresholds) -> Iterable[Finding]:
        """Report sockets, slow libfabric providers, host memory and missing GPUDirect RDMA."""
        logs = run[Logs]
        if not logs.is_nccl:
            yield self.meta.not_applicable(NO_NCCL_LOG)
            return
        if not any(logs.values(kind) for kind in _TELLING):
            yield self.meta.unknown("Unknown: NCCL's log does not say how ranks connect.")
            return
        if logs.has_several_hosts:
            yield from self._between_hosts(logs, run[EnvironmentFacts])
        yield from self._inside_a_host(logs)

    def _between_hosts(self, logs: Logs, facts: EnvironmentFacts) -> Iterable[Finding]:
        lost = rank_set(r for r, log in logs.ranks.items() if _is_without_provider(log))
        if lost:
            yield self._without_provider(logs, lost)
        sockets = rank_set(r for r, log in logs.ranks.items() if _is_on_sockets(log)) & ~lost
        if sockets:
            yield self._sockets(logs, sockets, _seen_fast(logs, facts))
        slow = {name: ranks for name, ranks in logs.values("libfabric provider").items()
                if name.startswith(_SLOW_PROVIDERS)}  # fmt: skip
        if slow:
            yield self.meta.finding(
                Status.FAIL,
                f"The libfabric plugin uses the provider {', '.join(slow)} on "
                f"{named_ranks(union(slow.values()))}: TCP in place of EFA or Slingshot.",
                severity=Severity.HIGH,
                cause="libfabric found no EFA or CXI device, or FI_PROVIDER names another.",
                fix="Run `fi_info -p efa` on these hosts",
                action="Run fi_info -p efa (or cxi) in the container on these hosts; give it the "
                "devices under /dev/infiniband or /dev/cxi*, and unset FI_PROVIDER.",
                ranks=ranks_of(union(slow.values())),
                evidence=(_table(logs),),
                confidence="high",
            )
        states = logs.values("GPUDirect RDMA")
        if states and all(state.startswith("Disabled") for state in states):
            yield self.meta.finding(
                Status.FAIL,
                f"GPUDirect RDMA is off for every network adapter on "
                f"{named_ranks(union(states.values()))}: data goes through host memory.",
                severity=Severity.MEDIUM,
                title="GPUDirect RDMA is off",
                cause="Neither the module nvidia-peermem nor DMA-BUF is available.",
                action="Load nvidia-peermem on the hosts, or use a driver and kernel with "
                "DMA-BUF. GeForce GPUs do not support GPUDirect RDMA.",
                ranks=ranks_of(union(states.values())),
                evidence=(_table(logs),),
                confidence="medium",
            )

    def _without_provider(self, logs: Logs, lost: RankSet) -> Finding:
        why = next(iter(logs.values("libfabric failure")))
        on_tcp = any(_is_on_sockets(logs.ranks[rank]) for rank in ranks_of(lost))
        instead = ": NCCL connects hosts by TCP sockets" if on_tcp else ""
        return self.meta.finding(
            Status.FAIL,
            f"libfabric finds no network adapter on {named_ranks(lost)} (“{why}”){instead}.",
            severity=Severity.HIGH,
            title="The libfabric plugin fails",
            cause="The container has no EFA or Slingshot devices, its libfabric lacks their "
            "provider, or FI_PROVIDER names another provider.",
            action="Run fi_info -p efa (or cxi) in the container on these hosts. Give it the "
            "devices under /dev/infiniband or /dev/cxi*, install the libfabric of the EFA "
            "installer or of the host, and unset FI_PROVIDER.",
            ranks=ranks_of(lost),
            evidence=(_table(logs),),
            confidence="high" if on_tcp else "medium",
        )

    def _sockets(self, logs: Logs, sockets: RankSet, fast: list[str]) -> Finding:
        devices = some(list(logs.values("network devices for TCP"))) or "devices not named"
        hosts = len(set(logs.hosts.values()))
        said = f"NCCL connects {hosts} hosts by TCP sockets ({devices})"
        if not fast:
            return self.meta.finding(
                Status.INFO,
                f"{said}; the logs show nothing faster.",
                title="Hosts are connected by TCP sockets",
                action="If the hosts have InfiniBand, RoCE, EFA or Slingshot, give the container "
                "its devices and the plugin that NCCL needs for it.",
                ranks=ranks_of(sockets),
                evidence=(_table(logs),),
                confidence="medium",
            )
        return self.meta.finding(
            Status.FAIL,
            f"{said} on {named_ranks(sockets)}, although there is {fast[0]}.",
            severity=Severity.HIGH,
            cause=_cause(logs),
            action="Give every rank the same devices (/dev/infiniband), libraries (libibverbs, "
            "the plugin) and variables (NCCL_NET, NCCL_IB_DISABLE, NCCL_IB_HCA).",
            ranks=ranks_of(sockets),
            evidence=(_table(logs),),
            confidence="high",
        )

    def _inside_a_host(self, logs: Logs) -> Iterable[Finding]:
        links = [link for link in logs.values("modelled link") if link.startswith(("NVL", "XGMI"))]
        staged = _staged(logs)
        if links and staged:
            yield self.meta.finding(
                Status.FAIL,
                f"{ranks_do(ranks_of(staged), 'exchange')} data inside their host through host "
                f"memory, although the GPUs are linked ({links[0]}).",
                severity=Severity.HIGH,
                cause="NCCL_P2P_DISABLE or NCCL_P2P_LEVEL, an IOMMU or ACS, or containers that "
                "do not share a namespace prevent peer access between GPUs.",
                action="Unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; run all ranks of a host in one "
                "container; see whether peers have access (nvidia-smi topo -p2p r, or rocm-smi "
                "--showtopoaccess).",
                ranks=ranks_of(staged),
                evidence=(_table(logs),),
                confidence="medium",
            )


def _staged(logs: Logs) -> RankSet:
    """Return ranks that go through host memory, on hosts where none reaches another's GPU.

    Where some do, as on cards that bridges link in pairs, the others may have no link.
    """
    paths = logs.values("path")
    peers = union(ranks for path, ranks in paths.items() if path.startswith("P2P"))
    linked = {logs.hosts.get(rank) for rank in ranks_of(peers)}
    staged = ranks_of(paths.get("SHM", 0))
    return sum(1 << rank for rank in staged if logs.hosts.get(rank) not in linked)


def _is_on_sockets(log: RankLog) -> bool:
    networks = log.values("network")
    if "NET/Socket" in log.values("path") or "Socket" in networks:
        return True
    return not networks and bool(log.values("network devices for TCP"))


def _is_without_provider(log: RankLog) -> bool:
    """Whether libfabric failed, and nothing took its place but sockets."""
    if not log.values("libfabric failure") or log.values("libfabric provider"):
        return False
    return not log.values("network").keys() - {"Socket"}


def _seen_fast(logs: Logs, facts: EnvironmentFacts) -> list[str]:
    """Return what is faster than TCP in the logs and in the environment of the ranks."""
    listed = [name for value in logs.values("network devices") for name in value.split()]
    found = [name for name in listed if _VERBS_DEVICE.match(name)]
    providers = logs.values("libfabric provider")
    found += [f"libfabric {name}" for name in providers if name.startswith(_FAST_PROVIDERS)]
    # Ethernet that could do RoCE needs a network made for it: disabled-transport covers it.
    for adapters in facts.adapters.values():
        for adapter in (one for adapters in adapters for one in adapters):
            if adapter.state == "ACTIVE" and kind_of(adapter.driver, adapter.link) in _NETWORKS:
                found.append(f"{adapter.name} ({adapter.link or adapter.driver})")
    return found


def _cause(logs: Logs) -> str:
    found = []
    if absent := logs.values("no network device"):
        found.append(f"no InfiniBand device on {named_ranks(union(absent.values()))}")
    if lost := logs.values("network plugin").get("none", 0):
        found.append(f"no network plugin on {named_ranks(lost)}")
    text = "; ".join(found)
    return f"{capitalised(text)}." if text else "The log does not say why."


def _table(logs: Logs) -> Table:
    rows = [
        (kind, value, written_ranks(ranks))
        for kind in _SHOWN
        for value, ranks in logs.values(kind).items()
    ]
    columns = (Column("the log says of"), Column("value"), Column("ranks"))
    return Table(columns, tuple(rows[:48]))
