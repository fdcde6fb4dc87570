"""inter-node-gathers: parameters cross nodes for backward again, and could stay inside one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.memory import Memory
from dsprof.analysis.aggregates.placement import GroupUse, Placement
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.rank.blocked_time import BlockedTime
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Details, Finding, Severity, Status, Table
from dsprof.findings.wording import FILL_HOSTS, duration, size
from dsprof.rules.evidence.calls import blocked_ms, bytes_per_step, share_of_step
from dsprof.rules.reasons import NO_DETAILED_GATHER
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.trace.device_counters import DEVICE_TOTAL, PEAK_RESERVED
from dsprof.trace.dtypes import item_bytes
from dsprof.trace.schema import EngineConfig

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When it costs."""

    held_share: float = 0.05  # of the step; less is information
    kept_share: float = 0.1  # of the device's memory: stays free after the change


class _Gather(NamedTuple):
    """All-gathers of one row have this in common."""

    label: str
    ranks: int
    phase: str


class _Crossing(NamedTuple):
    """All-gathers of parameters by groups with several ranks on each of several hosts."""

    rows: dict[_Gather, BlockedTime]
    ranks_a_host: int  # 0 where hosts have different numbers


class InterNodeGathers(Rule):
    """Looks at the all-gathers of parameters in groups that span hosts, by phase."""

    meta = RuleMeta(
        id="inter-node-gathers",
        title="All-gathers of parameters stay inside nodes where they can",
        failing_title="Parameters are all-gathered across nodes again for backward",
        why="Links between nodes are the slowest. A second copy of the parameters, sharded "
        "inside each node, keeps all-gathers inside it.",
        category="communication",
        order=370,
        needs=(Engines, Memory, Placement, Run, Steps),
        needs_sizes=True,
        min_steps=1,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Judge ZeRO-3 by what backward all-gathers, and FSDP by all that it all-gathers."""
        gathers = {u: h for u, h in run[Placement].rows.items() if u.purpose == "parameters"}
        crossing = _crossing(run, gathers)
        if run[Run].is_one_host:
            is_part = bool(run[Run].missing_ranks)
            yield self.meta.absent("The traces are of one host.", is_unknown=is_part)
        elif not gathers:
            yield self.meta.absent(NO_DETAILED_GATHER, is_unknown=run[Steps].is_counted)
        elif crossing.rows and run[Engines].main is not None:
            if run[Engines].stage == 3:
                yield from self._zero(run, crossing, thresholds)
        elif crossing.rows:
            yield self._fsdp(run, crossing, thresholds)

    def _zero(
        self, run: RunSummary, crossing: _Crossing, thresholds: Thresholds
    ) -> Iterable[Finding]:
        backward = {use: row for use, row in crossing.rows.items() if use.phase == "backward"}
        engine = run[Engines].main
        if not backward or engine is None or not _takes_hpz(run, backward, engine):
            return
        ranks = crossing.ranks_a_host
        elements = engine.layout.gathered or engine.parameters
        copy = elements * item_bytes(engine.parameter_dtype) // max(ranks, 1)
        room = _room(run, thresholds)
        hpz = run[Engines].zero("zero_hpz_partition_size", 1)
        is_set = isinstance(hpz, int) and hpz > 1
        in_order = _fill_hosts(run, ranks)
        fits = ranks > 1 and in_order and not is_set and (room is None or copy <= room)
        yield self._finding(
            run,
            crossing.rows,
            backward,
            thresholds,
            cause=f"zero_hpz_partition_size is {hpz}, but backward all-gathers across nodes."
            if is_set
            else "ZeRO-3 shards parameters over all ranks, and all-gathers them from all nodes for "
            "forward and again for backward.",
            action=f'Set "zero_hpz_partition_size" to {ranks}, the ranks of a node: backward then '
            f"all-gathers from a second copy inside the node, which takes {size(copy)} on each "
            "rank."
            if fits
            else _why_not(ranks, copy, room, is_set=is_set, in_order=in_order),
            config_patch={"zero_optimization": {"zero_hpz_partition_size": ranks}}
            if fits
            else None,
            confidence="medium" if room is not None else "low",
        )

    def _fsdp(self, run: RunSummary, crossing: _Crossing, thresholds: Thresholds) -> Finding:
        roles = {place.role for place in run[Placement].groups.values()}
        return self._finding(
            run,
            crossing.rows,
            crossing.rows,
            thresholds,
            title="FSDP all-gathers parameters from all nodes",
            cause="The shards of hybrid sharding span nodes: see misplaced-groups."
            if "replicate" in roles
            else "FSDP shards parameters over all ranks of all nodes.",
            fix="" if "replicate" in roles else "Shard inside a node (`HYBRID_SHARD`)",
            action="Make the shards the innermost dimension of the mesh."
            if "replicate" in roles
            else "If the ranks of one node have memory for the model, its gradients and the "
            "optimizer state, use hybrid sharding: ShardingStrategy.HYBRID_SHARD, or "
            "fully_shard with a mesh of two dimensions (replicate, shard). All-gathers then stay "
            "inside the node, and one all-reduce of the shards crosses nodes.",
            confidence="low",
        )

    def _finding(
        self,
        run: RunSummary,
        gathers: dict[_Gather, BlockedTime],
        avoidable: dict[_Gather, BlockedTime],
        thresholds: Thresholds,
        **details: Unpack[Details],
    ) -> Finding:
        cost_ms = blocked_ms(avoidable)
        is_costly = (
            cost_ms is not None and share_of_step(cost_ms, run[Steps]) >= thresholds.held_share
        )
        nbytes = bytes_per_step(avoidable)
        blocked = f" (blocked time {duration(cost_ms * 1e6)})" if cost_ms is not None else ""
        return self.meta.finding(
            Status.FAIL if is_costly else Status.INFO,
            f"All-gathers send {size(nbytes)} per step and rank across nodes that could stay "
            f"inside a node{blocked}; all-gathers across nodes send "
            f"{size(bytes_per_step(gathers))} in all.",
            **Details(
                problem=f"{size(nbytes)} per step cross nodes needlessly",
                severity=Severity.MEDIUM,
                evidence=(_table(gathers),),
                saving_bytes_per_step=round(nbytes),
            )
            | details,
        )


def _crossing(run: RunSummary, gathers: dict[GroupUse, BlockedTime]) -> _Crossing:
    rows, counts = dict[_Gather, BlockedTime](), set[int]()
    for use, row in gathers.items():
        place = run[Placement].groups[use.group]
        hosts = place.hosts(run[Run].hosts)
        if len(hosts) > 1 and max(hosts.values()) > 1:
            kind = _Gather(place.role or place.label, len(place.ranks), use.phase)
            rows[kind] = rows[kind] + row if kind in rows else row
            counts |= set(hosts.values())
    return _Crossing(rows, counts.pop() if len(counts) == 1 else 0)


def _room(run: RunSummary, thresholds: Thresholds) -> int | None:
    """Return what the fullest device has left, less what is to stay free; None if not known."""
    devices = [memory.device_max for memory in run[Memory].ranks.values()]
    rooms = [
        round(d[DEVICE_TOTAL] * (1 - thresholds.kept_share)) - d[PEAK_RESERVED]
        for d in devices
        if DEVICE_TOTAL in d and PEAK_RESERVED in d
    ]
    return min(rooms, default=None)


def _takes_hpz(run: RunSummary, gathers: dict[_Gather, BlockedTime], engine: EngineConfig) -> bool:
    """Say whether the engine could keep a second copy: all ranks share it, and no AutoEP."""
    of_all = all(kind.ranks == run[Run].first.world_size for kind in gathers)
    return of_all and not engine.written.get("expert_parallel")


def _fill_hosts(run: RunSummary, size: int) -> bool:
    """Say whether every `size` ranks that follow each other, as hpZ takes them, share a host."""
    blocks: dict[int, set[str]] = {}
    for rank, host in run[Run].hosts.items():
        blocks.setdefault(rank // max(size, 1), set()).add(host)
    return all(len(hosts) == 1 for hosts in blocks.values())


def _why_not(ranks: int, copy: int, room: int | None, *, is_set: bool, in_order: bool) -> str:
    if ranks < 2:
        return (
            "Give all nodes the same number of ranks: zero_hpz_partition_size must be the number "
            "of ranks of each node."
        )
    if not in_order:
        return (
            f"{FILL_HOSTS} zero_hpz_partition_size groups consecutive ranks: {ranks} of them are "
            "then the ranks of one node, and these all-gathers can stay inside it."
        )
    if is_set:
        return f"Set it to {ranks}, the ranks of a node."
    return (
        f"Free memory, then set zero_hpz_partition_size to {ranks}: it keeps these all-gathers "
        f"inside the node, but takes {size(copy)} on each rank, and the fullest rank has "
        f"{size(max(room or 0, 0))} left."
    )


def _table(gathers: dict[_Gather, BlockedTime]) -> Table:
    return Table(
        columns=(
            Column("group"),
            Column("ranks", "count"),
            Column("phase"),
            Column("calls per step", "count"),
            Column("bytes per step and rank", "bytes"),
            Column("blocked per step", "ms"),
        ),
        rows=tuple(
            (
                *kind,
                round(row.calls_per_step, 1),
                round(row.bytes_per_step),
                row.exposed_ms_per_step,
            )
            for kind, row in sorted(gathers.items(), key=lambda item: -item[1].nbytes)
        ),
        caption="All-gathers of parameters by groups that span nodes",
    )
