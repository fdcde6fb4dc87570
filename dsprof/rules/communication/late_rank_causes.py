"""Why a rank is late: by phases, by kernels, or by its pace between marks; the evidence."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np

from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.alignment.matching import Matched
from dsprof.analysis.rank.intervals import Array
from dsprof.analysis.rank.pace import Pace, is_slow
from dsprof.analysis.run.lateness import Lateness
from dsprof.analysis.run.votes import Votes
from dsprof.analysis.step_rows import RankSteps
from dsprof.findings.finding import Column, Table
from dsprof.findings.wording import duration, named
from dsprof.rules.causes import TRANSFERS
from dsprof.rules.evidence.spans import Span
from dsprof.trace.schema import ROLES


class Cause(NamedTuple):
    """A sentence or two of cause and action, and the action in a few words."""

    cause: str
    action: str
    fix: str
    restates: str = ""  # as in a finding


_COMPARE = (
    "Compare the work of rank {rank} with that of the others (tokens in a batch, layers, experts), "
    "then the clock speed of its processor or device and what else runs there."
)
_INPUT = (
    "Look at data loading on rank {rank} (workers, storage, an uneven shard), and at what only "
    "this rank does between steps: logging, evaluation, checkpoints."
)
_OF_FIRST = (
    "Look at what only rank 0 does between steps (logging, evaluation, checkpoints), and at its "
    "data loading (workers, storage, an uneven shard)."
)
"""Programs give the extra work of a run to rank 0."""
_COMPARE_FIX = "Compare its work and clock speed"
_INPUT_FIX = "Speed up its data loading"
_OF_FIRST_FIX = "Find what only rank 0 does between steps"
_LONGER_ON_HOST = "it computes longer, or gets less processor time"
"""The clock of a host also runs while other programs have its cores."""
_COPIES = Cause(
    "It spends {took} more in copies between host and device than the others.",
    "Look at the links and the memory of the host of rank {rank}: pinned memory, NUMA, other "
    "programs that copy.",
    "Pin the memory it copies from",
)
LINK_TOOLS = "(ibstat, ethtool -S, and nvidia-smi topo -m or rocm-smi --showtopo)"
_LINK = Cause(
    "links are slower",
    "Compare bytes, adapters, cables, port errors and placement of {ranks} with those of the "
    f"others {LINK_TOOLS}, and measure the links with dsprof bench.",
    "Compare adapters and port errors",
)
LINK_OF_CPUS = Cause(
    "threads that communicate get less processor time",
    "Leave free cores to {ranks}: lower OMP_NUM_THREADS, use fewer data-loader workers or fewer "
    "ranks, and see what else runs on those cores. Compare the bytes with those of the others.",
    "Leave free cores to each rank",
)
"""On one host, where all ranks send over the same loopback."""
_SEQUENCES = Cause(
    "the same part of each sequence",
    "Divide each sequence so that all ranks compute as much attention: with a causal mask in a "
    "zigzag, where a rank has an early and a late part.",
    "Give each rank as much attention to compute",
)
_PLACES = {
    "expert": Cause(
        "the same experts",
        "Balance the tokens over experts: raise the weight of the auxiliary loss, or limit the "
        "capacity factor.",
        "Balance the tokens over experts",
    ),
    "context": _SEQUENCES,
    "sequence": _SEQUENCES,
}
"""What ranks at one place of all groups of a role have in common."""
BY_PHASES: Mapping[str, Cause] = {
    "compute_ns": Cause(
        "Its forward, backward and optimizer step take {took} longer than those of the "
        f"others: {_LONGER_ON_HOST}.",
        _COMPARE,
        _COMPARE_FIX,
    ),
    "before_ns": Cause(
        "It spends {took} more before its forward passes than the others: it waits for input, "
        "or its host does something else.",
        _INPUT,
        _INPUT_FIX,
    ),
    "outside_ns": Cause(
        "It spends {took} more outside forward, backward and step than the others: its host "
        "does something else.",
        "Look at what only rank {rank} does between the phases: logging, metrics, checkpoints.",
        "Move its extra work out of the step",
    ),
    "copies_ns": _COPIES,
}
BY_KERNELS: Mapping[str, Cause] = {
    "compute_ns": Cause(
        "Its computing kernels take {took} longer than those of the others: it computes longer.",
        "Compare the work of rank {rank} with that of the others (tokens in a batch, layers, "
        "experts); if it is the same, the clock, temperature and power of its device (nvidia-smi "
        "-q -d PERFORMANCE, or rocm-smi), and what else runs there.",
        _COMPARE_FIX,
    ),
    "idle_ns": Cause(
        "Its device is idle for {took} more than those of the others: its host launches work "
        "late, or waits for input.",
        "Look at what the host of rank {rank} does before its collectives: data loading, an uneven "
        "shard, synchronisations, a busy or wrongly bound processor.",
        "Find what delays its host",
    ),
    "copies_ns": _COPIES,
}
_NOT_THE_NETWORK = "This wait ends when the rank arrives; the network does not cause it."


def by_parts(
    causes: Mapping[str, Cause], rank: int, more: Mapping[str, float], least_ns: float
) -> Cause | None:
    """Return the part that is longest beyond that of the others; None if under `least_ns`."""
    part = max(more, key=lambda name: more[name], default="")
    if not part or more[part] < least_ns:
        return None
    said = causes[part]
    cause = said.cause.format(took=duration(more[part]))
    if said.fix == _INPUT_FIX:
        return _before_forward(cause, rank)
    return Cause(cause, said.action.format(rank=rank), said.fix)


def _before_forward(cause: str, rank: int) -> Cause:
    """Return what to do about a rank that comes late to its forwards."""
    if rank == 0:
        return Cause(cause, _OF_FIRST, _OF_FIRST_FIX)
    return Cause(cause, _INPUT.format(rank=rank), _INPUT_FIX)


def by_transfers(late: Lateness, ranks: Sequence[int], least_ns: float, run: Run) -> Cause | None:
    """Return that collectives of all these ranks take longer, once all have arrived to them."""
    mine = np.isin(late.ranks, ranks)
    if mine.all():
        return None
    own_ns, usual_ns = late.transfer_ns[mine], float(np.median(late.transfer_ns[~mine]))
    if own_ns.min() - usual_ns < least_ns * late.asked:
        return None
    more_ns = float(np.median(own_ns)) - usual_ns
    its, it_sends = ("its", "it sends") if len(ranks) == 1 else ("their", "they send")
    link = LINK_OF_CPUS if run.is_cpu and run.is_one_host else _LINK
    return Cause(
        f"{its.capitalize()} collectives take {duration(more_ns / late.asked)} per step longer "
        f"than those of the others, after all ranks have arrived: {its} {link.cause}, or "
        f"{it_sends} more.",
        link.action.format(ranks=named(ranks)),
        link.fix,
        restates=TRANSFERS,
    )


def by_root(
    blocked_ns: Mapping[int, Mapping[str, float]], rank: int, others: Sequence[int], least_ns: float
) -> Cause | None:
    """Return that a rank is held longer as the root of collectives; None if under `least_ns`.

    `blocked_ns` gives the mean of a step for each rank and family.
    """
    more = {
        name: ns - float(np.median([blocked_ns[one].get(name, 0) for one in others]))
        for name, ns in blocked_ns[rank].items()
    }
    name = max(more, key=lambda one: more[one], default="")
    if not name or more[name] < least_ns:
        return None
    receives = name in ("gather", "reduce")
    other = "receives from" if receives else "sends to"
    action = (
        f"Send less to rank {rank}, or less often: reduce metrics before they are sent."
        if receives
        else f"Send less from rank {rank}, or less often: let each rank read its own data."
    )
    return Cause(
        f"It is blocked for {duration(more[name])} longer than the others in {name}, probably as "
        f"the root, which {other} all other ranks.",
        action,
        f"Call {name} less often",
    )


def by_span(span: Span, rank: int, also: Cause) -> Cause:
    """Return the span that the program named as the cause, beside where else it shows."""
    return Cause(
        f"Rank {rank} spends {span.on_both}, in {span.name}. {also.cause}",
        f"Find out why rank {rank} takes longer in {span.name} than the others.",
        f"Speed up {span.name} there",
    )


def by_pace(
    rank: int, mine: Pace, usual: Pace, least_ns: float, *, on_device: bool
) -> Cause | None:
    """Return whether a rank is slow or is held up before a step; None where that does not show."""
    slow = is_slow(mine, usual, least_ns)
    if slow is None:
        return None
    if not slow:
        took = duration(mine.before_ns - usual.before_ns)
        return _before_forward(
            f"It reaches the backwards, or the first collective, of a step {took} later than the "
            "others, and is as fast as they are after that: it waits for input, or its host is "
            "busy.",
            rank,
        )
    took = duration(mine.before_ns + mine.working_ns - usual.before_ns - usual.working_ns)
    why = "it computes longer, or its host launches work late" if on_device else _LONGER_ON_HOST
    return Cause(
        f"Outside its waits, its step takes {took} longer than those of the others, also between "
        f"backwards and collectives: {why}.",
        _COMPARE.format(rank=rank)
        + (" Record it with torch.profiler as well to see which." if on_device else ""),
        _COMPARE_FIX,
    )


def by_place(matched: Iterable[Matched], ranks: Collection[int]) -> Cause | None:
    """Return cause and action if ranks have the same place in each group of a role, and are all."""
    groups = {(one.group.role, one.ranks) for one in matched if one.group.role in _PLACES}
    for role in sorted({role for role, _ in groups}):
        members = [of for group_role, of in groups if group_role == role]
        places = {of.index(rank) for of in members for rank in of if rank in ranks}
        place = min(places, default=0)
        if len(members) > 1 and {of[place] for of in members if place < len(of)} == {*ranks}:
            what, action, fix, _ = _PLACES[role]
            which = f"rank {place} of each of the {len(members)} {ROLES[role]} groups: {what}"
            return Cause(f"They are {which}.", action, fix)
    return None


def unknown(rank: int, *, has_parts: bool) -> Cause:
    """Return what is left to say."""
    reason = (
        "no part of its step explains the delay"
        if has_parts
        else "the trace holds neither forward nor kernels, and the time between backward and "
        "collectives does not show it"
    )
    return Cause(
        f"Whether rank {rank} computes longer, or waits for its host or its input, is unknown: "
        f"{reason}. {_NOT_THE_NETWORK}",
        f"Look at what rank {rank} does before its collectives: data loading, an uneven shard, "
        "other programs, a slower processor.",
        "Compare its input and its work",
    )


_ROWS = 16
_OWN_TIME = "Own time of a step, without waits; the latest rank first"
_PHASES = {
    "compute_ns": "in forward, backward and step",
    "copies_ns": "copies",
    "before_ns": "before forward",
    "outside_ns": "otherwise outside phases",
}
_KERNELS = {"compute_ns": "computing kernels", "copies_ns": "copies", "idle_ns": "device idle"}


def last_arrivals(late: Lateness, votes: Votes) -> Table:
    """List who came last, how often, and by how much; the rank that was late most often first.

    So the rank that the finding names leads, where a single long wait for another one cost more.
    """
    steps = max(votes.steps * late.asked // max(late.compared, 1), 1)  # sums are of all steps
    waited_ns = late.waited_in_all_ns
    if late.clocks_ns:
        return _blocked(late, votes, waited_ns // steps)
    order = np.lexsort((-late.caused_ns, -votes.votes))[:_ROWS]
    rows = [
        (
            late.ranks[i],
            int(late.lasts[i]),
            int(late.met[i]),
            int(votes.votes[i]),
            int(late.caused_ns[i]) // steps,
            int(waited_ns[i]) // steps,
            int(late.transfer_ns[i]) // steps,
        )
        for i in order
    ]
    return Table(
        columns=(
            Column("rank"),
            Column("last to arrive", "count"),
            Column("of collectives", "count"),
            Column("steps in which only it was late", "count"),
            Column("others waited for it, per step", "ns"),
            Column("it waited for others, per step", "ns"),
            Column("transfer, per step", "ns"),
        ),
        rows=tuple(rows),
        caption="Last arrivals in the measured steps; times are means",
    )


def _blocked(late: Lateness, votes: Votes, more_ns: Array) -> Table:
    """List who is blocked least: clocks do not tell who came last."""
    order = np.lexsort((more_ns, -votes.votes))[:_ROWS]
    return Table(
        columns=(
            Column("rank"),
            Column("steps in which only it was late", "count"),
            Column("blocked longer than the least blocked rank, per step", "ns"),
        ),
        rows=tuple((late.ranks[i], int(votes.votes[i]), int(more_ns[i])) for i in order),
        caption="Blocked time in the measured steps; times are means",
    )


def own_time(times: Mapping[int, BusyTime], votes: Votes) -> Table:
    """List the parts of a step of each rank: phases, or kernels where a profile beside has them."""
    chosen = _latest(votes)
    labels = _PHASES if times[chosen[0]].idle_ns is None else _KERNELS
    rows = ([getattr(times[rank], part) for part in labels] for rank in chosen)
    return Table(
        columns=(Column("rank"), *(Column(label, "ns") for label in labels.values())),
        rows=tuple(
            (rank, *(None if value is None else round(value) for value in row))
            for rank, row in zip(chosen, rows, strict=True)
        ),
        caption=_OWN_TIME,
    )


def pace_table(paces: Mapping[int, Pace | None], votes: Votes) -> Table:
    """List what a step takes each rank around its marks."""
    chosen = [(rank, found) for rank in _latest(votes) if (found := paces[rank]) is not None]
    return Table(
        columns=(
            Column("rank"),
            Column("until its backwards or first collective", "ns"),
            Column("from there to its last", "ns"),
            Column("after that", "ns"),
        ),
        rows=tuple((rank, *astuple(found)) for rank, found in chosen),
        caption=_OWN_TIME,
    )


def _latest(votes: Votes) -> list[int]:
    order = np.argsort(-votes.median_ns, kind="stable")[:_ROWS]
    return [votes.ranks[i] for i in order]


@dataclass(frozen=True, slots=True)
class BusyTime:
    """Mean of a measured step of one rank in ns, without waits; None: not measurable."""

    compute_ns: float | None  # in forward, backward and step
    copies_ns: float | None
    before_ns: float | None  # from the phase before to each forward
    outside_ns: float | None  # otherwise outside all phases
    idle_ns: float | None = None  # of its device, from kernels; phases are then unknown


def busy_times(steps: Steps, before_ns: Mapping[int, int | None]) -> dict[int, BusyTime]:
    """Split the time of each rank; `before_ns` are sums over its measured steps."""
    return {
        rank: _own_time(row, steps.measured, before_ns.get(rank))
        for rank, row in steps.ranks.items()
    }


def _own_time(row: RankSteps, measured: Sequence[int], before_ns: int | None) -> BusyTime:
    chosen = np.isin(row.number, measured)
    count = max(int(np.count_nonzero(chosen)), 1)
    whole = row.profiled is None or bool(row.profiled[chosen].all())
    compute, copies, exposed, idle = (
        None if column is None or not is_known else int(column[chosen].sum()) / count
        for column, is_known in (
            (row.compute_ns, whole),
            (row.copies_ns, whole),
            (row.exposed_ns, True),
            (row.idle_ns, whole),
        )
    )
    if compute is None or exposed is None:
        return BusyTime(None, copies, None, None)
    if idle is not None:
        return BusyTime(compute, copies, None, None, idle)
    other = int(row.total_ns[chosen].sum()) / count - compute - exposed - (copies or 0.0)
    before = min(before_ns / count, other) if before_ns is not None else 0.0
    return BusyTime(compute, copies, before, other - before)


def excess(times: Mapping[int, BusyTime], rank: int, others: Sequence[int]) -> dict[str, float]:
    """Return by how much each part of a rank is above the median of the others, in ns a step."""
    found = {}
    for part in ("compute_ns", "copies_ns", "before_ns", "outside_ns", "idle_ns"):
        mine = getattr(times[rank], part)
        known = [value for one in others if (value := getattr(times[one], part)) is not None]
        if mine is not None and known:
            found[part] = mine - float(np.median(known))
    return found
