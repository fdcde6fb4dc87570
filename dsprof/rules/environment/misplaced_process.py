"""misplaced-process: ranks are bound to one core together, or to CPUs far from their device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.rank_sets import RankSet, named_ranks, ranks_of, union, written_ranks
from dsprof.analysis.summary import RunSummary
from dsprof.environment.machine import read_set
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import capitalised
from dsprof.rules.rule import NoThresholds, Rule, RuleMeta

_BINDING = (
    "Bind each rank to the cores beside its device: torchrun --numa-binding node, srun "
    "--gpu-bind=closest with --cpus-per-task, deepspeed --bind_cores_to_rank, or numactl."
)


class _Crowd(NamedTuple):
    host: str
    cpus: str
    ranks: RankSet


class _Stray(NamedTuple):
    cpu_nodes: str
    device_node: str
    ranks: RankSet


class MisplacedProcess(Rule):
    """Compares the CPUs that ranks may use with each other and with the place of their devices."""

    meta = RuleMeta(
        id="misplaced-process",
        title="Ranks run on separate cores near their devices",
        failing_title="Ranks run on the wrong cores",
        why="Launch threads, data loaders and the library's own threads of a rank run where it is "
        "bound. On one core for all of them, or across the socket, they delay the device.",
        category="environment",
        order=760,
        needs=(EnvironmentFacts,),
    )

    def check(self, run: RunSummary, thresholds: NoThresholds) -> Iterable[Finding]:
        """Report ranks of a host that share too few cores, and ranks far from their device."""
        facts = run[EnvironmentFacts]
        if not facts.machine.get("cpus"):
            yield self.meta.unknown("Unknown: the CPUs that ranks may use were not recorded.")
            return
        crowds = list(_crowds(facts))
        if single := [crowd for crowd in crowds if len(_numbers(crowd.cpus)) == 1]:
            yield self._crowded(single)
        if shared := [crowd for crowd in crowds if crowd not in single]:
            yield self.meta.finding(
                Status.INFO,
                f"{capitalised(named_ranks(shared[0].ranks))} share the CPUs {shared[0].cpus} of "
                f"{shared[0].host}: fewer than one for each.",
                action="Bind each rank to separate cores if the host has enough.",
                evidence=(_crowd_table(shared),),
            )
        if strays := list(_strays(facts)):
            yield self._strayed(strays)

    def _crowded(self, crowds: list[_Crowd]) -> Finding:
        ranks = union(crowd.ranks for crowd in crowds)
        first = crowds[0]
        return self.meta.finding(
            Status.FAIL,
            f"{capitalised(named_ranks(first.ranks))} can all use only CPU {first.cpus} of "
            f"{first.host}.",
            severity=Severity.HIGH,
            cause="A launcher that was itself bound to one core (torchrun under srun) starts all "
            "ranks there.",
            action="Start one task per node with all its cores (srun --cpus-per-task=N "
            "--cpu-bind=none), or let srun start the ranks. " + _BINDING,
            ranks=ranks_of(ranks),
            evidence=(_crowd_table(crowds),),
            confidence="high",
        )

    def _strayed(self, strays: list[_Stray]) -> Finding:
        ranks = union(stray.ranks for stray in strays)
        first = strays[0]
        return self.meta.finding(
            Status.FAIL,
            f"{capitalised(named_ranks(ranks))} can use only cores away from the device: on NUMA "
            f"node {first.cpu_nodes}, the device on node {first.device_node}.",
            severity=Severity.MEDIUM,
            cause="Copies and launches cross the link between sockets; with offloading, all "
            "gradients and parameters do.",
            action=_BINDING,
            ranks=ranks_of(ranks),
            evidence=(_stray_table(strays),),
            confidence="medium",
        )


def _crowds(facts: EnvironmentFacts) -> Iterator[_Crowd]:
    """Yield ranks of one host that are bound to fewer CPUs than they are, and than it has."""
    total = max(facts.limits.get("cpus", {0: 0}))
    bound = [(cpus, len(_numbers(cpus)), ranks) for cpus, ranks in facts.machine["cpus"].items()]
    for host, here in sorted(facts.backends.get("host", {}).items()):
        for cpus, count, ranks in sorted(bound):
            if 0 < count < (ranks & here).bit_count() and count < total:
                yield _Crowd(host, cpus, ranks & here)


def _strays(facts: EnvironmentFacts) -> Iterator[_Stray]:
    for device_node, with_device in sorted(facts.device_nodes.get("", {}).items()):
        for cpu_nodes, bound in sorted(facts.machine.get("cpu_nodes", {}).items()):
            nodes = _numbers(cpu_nodes)
            if bound & with_device and nodes and int(device_node) not in nodes:
                yield _Stray(cpu_nodes, device_node, bound & with_device)


def _numbers(text: str) -> set[int]:
    """Return the numbers of a list such as "0-3,8"; none where it is no such list."""
    try:
        return read_set(text)
    except ValueError:
        return set()


def _crowd_table(crowds: list[_Crowd]) -> Table:
    columns = (Column("host"), Column("CPUs"), Column("ranks"))
    return Table(columns, tuple((c.host, c.cpus, written_ranks(c.ranks)) for c in crowds))


def _stray_table(strays: list[_Stray]) -> Table:
    columns = (Column("NUMA nodes of the CPUs"), Column("of the device"), Column("ranks"))
    rows = ((s.cpu_nodes, s.device_node, written_ranks(s.ranks)) for s in strays)
    return Table(columns, tuple(rows))
