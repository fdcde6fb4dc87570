"""late-rank: one rank reaches its collectives last, and the others wait for it in theirs.

A trace of dsprof holds when each rank entered each collective: steps vote. A profile holds how long
each communication kernel ran instead. Kernels of a collective begin when a rank arrives and end
together, so those of the last to arrive are by far the shortest. What the others wait for it is
summed over the collectives that all ranks recorded, for windows may be of different length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.device import Device, RankDevice
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.alignment.matching import Matched
from dsprof.analysis.rank.pace import others_pace
from dsprof.analysis.run.attribution import attribution
from dsprof.analysis.run.busy_time import busy_times, excess
from dsprof.analysis.run.lateness import Lateness, Together, Votes, lateness, together, vote
from dsprof.analysis.run.outliers import chance_of
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import duration, named, percent, ranks_do
from dsprof.rules.communication.late_rank_causes import (
    BY_KERNELS,
    BY_PHASES,
    Cause,
    by_pace,
    by_parts,
    last_arrivals,
    own_time,
    pace_table,
    unknown,
)
from dsprof.rules.reasons import EVENTS_MISSING, NO_ARRIVALS, SINGLE_RANK
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.savings import Range, about


@dataclass(frozen=True, slots=True)
class KernelThresholds:
    """When a rank is called late in profiles."""

    communication_ratio: float = 0.6  # its time in collectives / that of any other
    waited_share: float = 0.02  # of the measured steps: what the others wait for it
    severe_share: float = 0.3
    cause_share: float = 0.6  # of the lateness, that one part of a rank's own time must explain


def judge_kernels(
    meta: RuleMeta, run: RunSummary, thresholds: KernelThresholds
) -> Iterable[Finding]:
    """Name the rank whose communication kernels are far shorter than those of all others."""
    device, facts = run[Device], run[Run]
    if problem := _undecidable(device, facts):
        status, text = problem
        yield meta.finding(status, text)
        return
    late = lateness(run[Arrivals].matched, run[Steps].measured or None)
    if not late.collectives:
        yield meta.finding(Status.UNKNOWN, "Unknown: no collective was matched across the ranks.")
        return
    spent_ns = (late.waited_ns.clip(0) + late.transfer_ns).sum(axis=1)
    place = int(spent_ns.argmin())
    rank, window = late.ranks[place], device.ranks[late.ranks[place]].judged
    least_ns = min(int(ns) for i, ns in enumerate(spent_ns) if i != place)
    waited_ns = int(late.caused_ns[place].sum())
    share = waited_ns / max(window.span_ns, 1)
    is_shortest = spent_ns[place] <= thresholds.communication_ratio * least_ns
    if not is_shortest or share < thresholds.waited_share:
        return
    severe = share >= thresholds.severe_share
    count = max(window.steps, 1)
    excess = {part: ns / count for part, ns in _excess(device.ranks, rank).items()}
    why = by_parts(BY_KERNELS, rank, excess, thresholds.cause_share * waited_ns / count)
    cause, action = why or unknown(rank, has_parts=True)
    of = "per step" if window.steps else "of the recorded time"
    yield meta.finding(
        Status.FAIL,
        f"{ranks_do((rank,), 'delay')} the others by {duration(waited_ns / count)} {of} "
        f"({percent(share)}): it arrives last in {int(late.lasts[place])} of "
        f"{int(late.met[place])} collectives.{_exposed(run)}",
        severity=Severity.HIGH if severe else Severity.MEDIUM,
        cause=f"A collective's kernels start when their rank arrives and end together. Those of "
        f"rank {rank} are by far the shortest, so it arrives last. {cause}",
        action=action,
        ranks=(rank,),
        evidence=(_by_rank(device.ranks, late, count),),
        confidence="high" if severe else "medium",
    )


def _exposed(run: RunSummary) -> str:
    """Say how much of the wait costs time: part of it may be behind computation."""
    split = attribution(run)
    if split is None:
        return ""
    return f" {percent(split.waiting)} of the step (mean over ranks) is exposed waiting."


def _excess(ranks: Mapping[int, RankDevice], late: int) -> dict[str, float]:
    """Return by how much each part of a device's time is above the median of the others, in ns.

    As shares of the window of each: windows may be of different length.
    """
    span = max(ranks[late].judged.span_ns, 1)
    found = {}
    for part in BY_KERNELS:
        shares = {
            rank: getattr(row.judged, part) / max(row.judged.span_ns, 1)
            for rank, row in ranks.items()
        }
        found[part] = (shares.pop(late) - median(shares.values())) * span
    return found


def _undecidable(device: Device, run: Run) -> tuple[Status, str] | None:
    if len(device.complete) < len(device.ranks):
        return Status.UNKNOWN, EVENTS_MISSING
    if missing := [rank for rank in range(run.first.world_size) if rank not in device.ranks]:
        count = len(missing)
        text = f"Unknown: no times of {count} of {run.first.world_size} ranks were recorded, and "
        return Status.UNKNOWN, text + "one of them may be the late one."
    if not any(row.communication_kernels for row in device.ranks.values()):
        return Status.NOT_APPLICABLE, "No communication kernel was recorded."
    return None


def _by_rank(ranks: Mapping[int, RankDevice], late: Lateness, steps: int) -> Table:
    caused_ns = late.caused_ns.sum(axis=1)
    order = sorted(range(len(late.ranks)), key=lambda place: -int(caused_ns[place]))[:16]
    sums = (caused_ns, late.waited_ns.clip(0).sum(axis=1), late.transfer_ns.sum(axis=1))
    rows = []
    for place in order:
        window = ranks[late.ranks[place]].judged
        times = [*(int(column[place]) for column in sums), window.idle_ns, window.compute_ns]
        rows.append((late.ranks[place], *(ns // steps for ns in times)))
    return Table(
        columns=(
            Column("rank"),
            Column("time others waited for it", "ns"),
            Column("time it waited for others", "ns"),
            Column("transfer", "ns"),
            Column("idle", "ns"),
            Column("compute", "ns"),
        ),
        rows=tuple(rows),
        caption="Mean per measured step, or the whole record if no step is marked; only "
        "collectives that all ranks recorded",
    )


_ROWS = 16
_SHARDING = frozenset({"data", "expert_data", "shard", "replicate"})
"""Roles of groups whose ranks do the same work, in a run that also has stages of a pipeline."""


@dataclass(frozen=True, slots=True)
class Thresholds(KernelThresholds):
    """When a rank is called late."""

    step_share: float = 0.05  # of the step: what the others wait for it, in a trace of dsprof
    turns_share: float = 0.25  # of the step: waits for ranks that take turns are worth a remark
    chance: float = 0.01  # of so many votes for one rank if all were alike
    seconds: float = 1.0  # of measured steps together: programs beside hold a processor so long
    medium_share: float = 0.1


class LateRank:
    """Judges by arrivals where a trace holds them, else by the length of communication kernels."""

    meta = RuleMeta(
        id="late-rank",
        title="No rank is a straggler",
        failing_title="Ranks wait for a late rank",
        why="A collective takes as long as its last rank takes to arrive: all others wait inside.",
        category="communication",
        order=100,
        needs=(Arrivals, Device, Run, Steps),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Name the rank that the others wait for."""
        if run[Run].first.world_size < 2:
            yield self.meta.finding(Status.NOT_APPLICABLE, SINGLE_RANK)
        elif run[Device].ranks and not run[Device].is_beside:
            yield from judge_kernels(self.meta, run, thresholds)
        else:
            yield from self._by_arrivals(run, thresholds)

    def _by_arrivals(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        arrivals, steps = run[Arrivals], run[Steps]
        step_ns = steps.total.total_ns / max(len(steps.measured), 1)
        polls = []
        for one in _alike(arrivals):
            late = lateness(one, steps.measured)
            votes = vote(late, thresholds.step_share * step_ns / 2)
            polls += [(late, votes)] if votes.steps else []
        if not polls or not step_ns:
            yield self._nothing_matched(run)
            return
        late, votes = max(polls, key=lambda poll: int(poll[1].median_ns[poll[1].leader]))
        cost_ns = int(votes.median_ns[votes.leader])
        unplaced = [rank for one in arrivals.matched for rank in one.unplaced]
        if unplaced:
            text = (
                f"Unknown: the collectives of {named(sorted(set(unplaced)))} match no other rank's."
            )
            yield self.meta.finding(Status.UNKNOWN, text)
        elif problem := _why_not(run, votes, step_ns, thresholds):
            yield self.meta.finding(Status.UNKNOWN, f"Unknown: {problem}")
        elif cost_ns >= thresholds.step_share * step_ns and votes.late:
            yield self._voted(run, late, votes, step_ns, thresholds)
        elif several := _late_together(run, late, step_ns, thresholds):
            yield self._several(run, several, last_arrivals(late, votes), step_ns, thresholds)
        else:
            yield self._nobody(late, votes, step_ns, thresholds)

    def _nothing_matched(self, run: RunSummary) -> Finding:
        if any(len(one.rows) for one in run[Arrivals].ranks.values()):
            text = "Unknown: no measured step has a collective that all ranks recorded."
            return self.meta.finding(Status.UNKNOWN, text)
        return self.meta.finding(Status.NOT_APPLICABLE, NO_ARRIVALS)

    def _nobody(
        self, late: Lateness, votes: Votes, step_ns: float, thresholds: Thresholds
    ) -> Finding:
        waited_ns = _mean_waited(late)
        share = waited_ns / step_ns
        if share < thresholds.turns_share and late.doubt_ns >= thresholds.step_share * step_ns:
            text = f"Unknown: arrival times are accurate to {duration(late.doubt_ns)} "
            text += (
                f"({percent(late.doubt_ns / step_ns)} of the step); a smaller delay does not show."
            )
            return self.meta.finding(Status.UNKNOWN, text)
        if share < thresholds.turns_share:
            text = f"Ranks wait {duration(waited_ns)} of a step for the last to arrive "
            return self.meta.finding(
                Status.PASS,
                f"{text}({percent(share)}), but no rank is last more often than others.",
            )
        return self.meta.finding(
            Status.INFO,
            f"Ranks wait {duration(waited_ns)} of a step ({percent(share)}) for the last to "
            "arrive, and different ranks arrive last in turn.",
            title="Ranks wait for each other in turn",
            cause="The work of a step, or the machine, differs from rank to rank and from step "
            "to step: batches of uneven length, routing of experts, other programs on the "
            "host.",
            action="Group samples of similar length, or balance tokens instead of samples over "
            "ranks.",
            evidence=(last_arrivals(late, votes),),
            confidence="medium",
        )

    def _voted(
        self,
        run: RunSummary,
        late: Lateness,
        votes: Votes,
        step_ns: float,
        thresholds: Thresholds,
    ) -> Finding:
        place = votes.leader
        cost_ns = int(votes.median_ns[place])
        share = cost_ns / step_ns
        (cause, action), table = _why(run, votes, thresholds)
        return self.meta.finding(
            Status.FAIL,
            f"{ranks_do(votes.late, 'delay')} the others by {duration(cost_ns)} per step "
            f"({percent(share)}): last in {int(votes.votes[place])} of the {votes.cast} steps "
            f"that have one late rank{_bound(late)}.",
            severity=_gravity(share, thresholds),
            cause=cause,
            action=action,
            ranks=votes.late,
            evidence=(last_arrivals(late, votes), table),
            saving_ms_per_step=_saving(votes),
            exposed_per_saving=1 - len(votes.late) / len(votes.ranks),
            confidence="high" if late.stride == 1 and not late.doubt_ns else "medium",
        )

    def _several(
        self,
        run: RunSummary,
        several: Together,
        evidence: Table,
        step_ns: float,
        thresholds: Thresholds,
    ) -> Finding:
        share = several.cost_ns / step_ns
        cause, action = _of_hosts(run[Run], several.ranks)
        return self.meta.finding(
            Status.FAIL,
            f"{ranks_do(several.ranks, 'delay')} the others by {duration(several.cost_ns)} per "
            f"step ({percent(share)}): late together in {several.steps} of {several.of} steps.",
            title="Ranks wait for several late ranks",
            severity=_gravity(share, thresholds),
            cause=cause,
            action=action,
            ranks=several.ranks,
            evidence=(evidence,),
            confidence="medium",
        )


def _late_together(
    run: RunSummary, late: Lateness, step_ns: float, thresholds: Thresholds
) -> Together | None:
    """Return ranks that are late together, if that costs much and is neither chance nor brief."""
    found = together(late, thresholds.step_share * step_ns / 2)
    if found is None or found.cost_ns < thresholds.step_share * step_ns:
        return None
    is_chance = chance_of(found.steps, found.of, len(late.ranks)) > thresholds.chance
    seconds = step_ns * len(run[Steps].measured) / 1e9
    return None if is_chance or seconds < thresholds.seconds else found


def _of_hosts(run: Run, ranks: tuple[int, ...]) -> Cause:
    """Return cause and action by whether the ranks are those of hosts of their own."""
    mine = {run.ranks[rank].header.host for rank in ranks}
    others = {facts.header.host for rank, facts in run.ranks.items() if rank not in ranks}
    if others and not mine & others:
        hosts = ", ".join(sorted(mine)[:4])
        return Cause(
            f"They are all the ranks of {hosts}, and no other rank runs there.",
            f"Compare {hosts} with the other hosts: clocks and temperature, storage, and what else "
            "runs there.",
        )
    return Cause(
        "They have more work than the others before each collective, or slower devices.",
        "Compare what they compute and load with the others: their share of the model and of the "
        "batch, experts, samples, and what else runs on their cores.",
    )


def _alike(arrivals: Arrivals) -> list[list[Matched]]:
    """Return sets of groups whose ranks do the same work: all, or one a shard group of a pipeline.

    Stages of a pipeline do different work, and wait for each other by design.
    """
    if all(group.role != "pipeline" for group in arrivals.groups.values()):
        return [arrivals.matched] if arrivals.matched else []
    return [[one] for one in arrivals.matched if one.group.role in _SHARDING]


def _why_not(run: RunSummary, votes: Votes, step_ns: float, thresholds: Thresholds) -> str:
    """Say why no verdict is possible; empty if one is."""
    rank, cost_ns = votes.ranks[votes.leader], int(votes.median_ns[votes.leader])
    is_costly = cost_ns >= thresholds.step_share * step_ns
    if missing := run[Run].missing_ranks:
        seen = f"; of those present rank {rank} comes last, {duration(cost_ns)} of a step"
        return (
            f"{len(missing)} of {run[Run].first.world_size} ranks left no trace, and one of them "
            f"may come later{seen if votes.late else ''}."
        )
    if run[Steps].exposed_share is None:
        return "the waits for some collectives were not recorded."
    if is_costly and votes.late and votes.chance > thresholds.chance:
        return (
            f"rank {rank} was last in {int(votes.votes[votes.leader])} of {votes.cast} steps, "
            "which may be chance; record more steps."
        )
    seconds = step_ns * len(run[Steps].measured) / 1e9
    if is_costly and votes.late and seconds < thresholds.seconds:
        return (
            f"rank {rank} comes last, but the steps measured last {seconds:.1f} s together, and "
            "another program may hold a processor for that long; record more steps."
        )
    return ""


def _mean_waited(late: Lateness) -> float:
    """Return how long a rank waited in a step, mean over ranks and steps."""
    known = late.waited_ns[:, (late.waited_ns >= 0).all(axis=0)]
    return float(known.mean()) if known.size else 0.0


def _bound(late: Lateness) -> str:
    if not late.doubt_ns:
        return ""
    accuracy = f"arrival times are accurate to {late.doubt_ns / 1e6:,.3f} ms"
    return f"; {accuracy}, smaller differences are ignored"


def _gravity(share: float, thresholds: Thresholds) -> Severity:
    if share >= thresholds.severe_share:
        return Severity.HIGH
    return Severity.MEDIUM if share >= thresholds.medium_share else Severity.LOW


def _saving(votes: Votes) -> Range | None:
    """Return what a step gets shorter if the rank comes when the others do.

    Then the rank that is second to last by now is waited for: the least of the waits is left.
    """
    place = votes.leader
    high_ms = int(votes.median_ns[place]) / 1e6
    return about(min(max(int(votes.least_ns[place]) / 1e6, high_ms / 2), high_ms), high_ms)


def _why(run: RunSummary, votes: Votes, thresholds: Thresholds) -> tuple[Cause, Table]:
    """Return why the leader is late, with the times that tell; by the parts of a step if known."""
    rank = votes.ranks[votes.leader]
    others = [one for one in votes.ranks if one not in votes.late]
    least_ns = thresholds.cause_share * int(votes.median_ns[votes.leader])
    facts, steps = run[Arrivals].ranks, run[Steps]
    times = busy_times(steps, {one: row.before_ns for one, row in facts.items()})
    causes = BY_PHASES if times[rank].idle_ns is None else BY_KERNELS
    more = excess(times, rank, others)
    if times[rank].compute_ns is not None and (
        causes is BY_KERNELS or facts[rank].before_ns is not None
    ):
        found = by_parts(causes, rank, more, least_ns)
        return found or unknown(rank, has_parts=True), own_time(times, votes)
    copies = {part: more_ns for part, more_ns in more.items() if part == "copies_ns"}
    found = by_parts(causes, rank, copies, least_ns)
    paces = {one: row.pace for one, row in facts.items()}
    mine, usual = paces[rank], others_pace(paces, others)
    if found is None and mine is not None and usual is not None:
        on_device = steps.ranks[rank].on_device
        found = by_pace(rank, mine, usual, least_ns, on_device=on_device)
    return found or unknown(rank, has_parts=False), pace_table(paces, votes)


RULE: Rule = LateRank()
