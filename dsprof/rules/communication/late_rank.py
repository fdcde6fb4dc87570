"""late-rank: one rank reaches its collectives last, and the others wait for it in theirs.

A trace of dsprof holds when each rank entered each collective: steps vote. A profile holds how long
each communication kernel ran instead (`late_rank_kernels`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, floor

import numpy as np

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.device import Device
from dsprof.analysis.aggregates.phases import Phases
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.alignment.matching import Matched
from dsprof.analysis.rank.pace import others_pace
from dsprof.analysis.run.lateness import Lateness, alike, by_blocked_time, lateness
from dsprof.analysis.run.onset import Onset, onset
from dsprof.analysis.run.outliers import chance_of
from dsprof.analysis.run.own_work import own_work_ns
from dsprof.analysis.run.series import Floats
from dsprof.analysis.run.votes import Together, Votes, together, vote
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Finding, Range, Status, Table
from dsprof.findings.wording import (
    capitalised,
    duration,
    named,
    percent,
    plural,
    ranks_do,
    some,
)
from dsprof.rules.causes import IN_TURN, TRANSFERS
from dsprof.rules.communication.late_rank_case import Case, Known, Thresholds
from dsprof.rules.communication.late_rank_causes import (
    BY_KERNELS,
    BY_PHASES,
    Cause,
    busy_times,
    by_pace,
    by_parts,
    by_place,
    by_root,
    by_span,
    by_transfers,
    excess,
    last_arrivals,
    own_time,
    pace_table,
    unknown,
)
from dsprof.rules.communication.late_rank_kernels import judge_kernels
from dsprof.rules.communication.late_rank_turns import moving_straggler, one_after_another
from dsprof.rules.evidence.spans import span_behind
from dsprof.rules.reasons import NO_ARRIVALS
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.savings import about

_FEW = 0.05
"""Share of the steps in which stalls may make most of the waits: ranks take no turns then."""
_ALONE = 0.25
"""With less of its delay left in the least of the waits, a rank is mostly late beside others."""
_TOO_BRIEF = (
    "but the measured steps last {} together, and another program may occupy a processor for that "
    "long"
)


class LateRank(Rule):
    """Judges by arrivals where a trace holds them, else by the length of communication kernels."""

    meta = RuleMeta(
        id="late-rank",
        title="No rank is a straggler",
        failing_title="Ranks wait for a late rank",
        why="A collective takes as long as its last rank takes to arrive: all others wait inside.",
        category="communication",
        order=100,
        needs=(Arrivals, Device, Phases, Run, Steps),
        needs_ranks=True,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Name the straggler."""
        if run[Device].ranks and not run[Device].is_beside:
            yield from judge_kernels(self.meta, run, thresholds)
        else:
            yield from self._by_arrivals(run, thresholds)

    def _by_arrivals(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        arrivals, steps = run[Arrivals], run[Steps]
        step_ns = steps.mean_ns
        cases = []
        for one in alike(arrivals):
            late = lateness(one, steps.measured)
            votes = vote(late, thresholds.step_share * step_ns / 2)
            if votes.steps:
                cases.append(_seen(Case(run, late, votes, step_ns, thresholds), one))
        if not cases or not step_ns:
            yield self._nothing_matched(run)
            return
        case = max(cases, key=lambda case: (_works_longer(case), case.votes.cost_ns))
        doubt, moving = _doubt(case), one_after_another(case)
        has_moved = moving is not None and moving.are_over and not case.votes.is_of_all
        unplaced = [rank for one in arrivals.matched for rank in one.unplaced]
        if unplaced:
            yield self.meta.unknown(
                f"Unknown: the collectives of {named(sorted(set(unplaced)))} match no other rank's."
            )
        elif problem := _why_not(run, case.votes):
            yield self.meta.unknown(f"Unknown: {problem}")
        elif _is_waited_for_by_early(case):
            yield self._early(case)
        elif not (doubt or has_moved) and case.votes.stragglers(case.least_ns):
            yield self._voted(case)
        elif several := _late_together(case):
            yield self._several(case, several)
        elif moving:
            yield moving_straggler(self.meta, case, moving)
        elif doubt:
            yield self._suspected(case, doubt)
        elif several := _suspects(case):
            yield self._several_suspected(case, several)
        else:
            yield self._nobody(case)

    def _nothing_matched(self, run: RunSummary) -> Finding:
        if run[Arrivals].matched and not alike(run[Arrivals]):
            return self.meta.not_applicable(
                "Only ranks of different pipeline stages share a collective, and their work "
                "differs."
            )
        if any(len(one.rows) for one in run[Arrivals].ranks.values()):
            return self.meta.unknown(
                "Unknown: no measured step has a collective that waits for all ranks and was "
                "recorded on all of them."
            )
        return self.meta.not_applicable(NO_ARRIVALS)

    def _nobody(self, case: Case) -> Finding:
        late, known, thresholds = case.late, case.known(), case.thresholds
        waits_ns = _waits(late) * known.share
        count = len(waits_ns)
        few = min(max(int(_FEW * count), 1), count // 3)
        waited_ns = float(waits_ns.mean())
        share, rest = case.share(waited_ns), case.share(waits_ns[: count - few].mean())
        usual = rest if 2 * rest < share else share
        if usual < thresholds.turns_share:
            longest = f"the {few} longest" if few > 1 else "the longest"
            without = ""
            if share >= thresholds.turns_share:
                without = f", {percent(rest)} without {longest} of {count:,} steps"
            return self.meta.finding(
                Status.PASS,
                f"Ranks wait {duration(waited_ns)} per step for the last arrival ({percent(share)}"
                f"{without}); no rank delays two thirds of "
                f"the steps by {percent(thresholds.step_share)} or more{case.accuracy}."
                f"{known.note}",
            )
        rank = late.waited_for
        most = "" if rank is None else f"rank {rank} causes over two thirds of the wait"
        if count > 1:
            turns = "and different ranks arrive last in turn"
            said = f", {turns}{most and f', but {most}'}"
        else:
            said = most and f"; {most}"
        return self.meta.finding(
            Status.INFO,
            f"Ranks wait {duration(waited_ns)} per step ({percent(share)}) for the last arrival"
            f"{said}{case.accuracy}.{known.note}",
            title="Ranks wait for each other in turn" if count > 1 else "Ranks wait in this step",
            cause="The work of a step, or the machine, differs from rank to rank and from step to "
            "step: batches of uneven length, routing of experts, Python's garbage collector, other "
            "programs on the host.",
            action="Group samples of similar length, or balance tokens instead of samples over "
            "ranks; collect garbage in the same steps on all ranks.",
            evidence=(last_arrivals(late, case.votes),),
            restates=IN_TURN if count > 1 else "",
            confidence="medium",
        )

    def _early(self, case: Case) -> Finding:
        votes, known = case.votes, case.known()
        return self.meta.finding(
            Status.PASS,
            f"The others wait for rank {case.rank} in {int(votes.votes[votes.leader])} of "
            f"{votes.steps} steps, which take no longer than those without waits: it works no "
            f"longer there, and the others less.{known.note}",
        )

    def _suspected(self, case: Case, doubt: str) -> Finding:
        """Say how many more steps would decide it."""
        more = _more_steps(case)
        verb = "Record" if case.run[Run].selection.steps is None else "Choose"
        record = "" if more is None else f"{verb} {plural(more, 'more step')}"
        return self.meta.unknown(
            f"Unknown: {doubt}{f'; {record[0].lower()}{record[1:]}' if record else ''}."
            f"{case.known().note}",
            problem=f"Rank {case.rank} may delay {case.delay}",
            fix=f"{record} to be sure" if record else "",
            ranks=(case.rank,),
            more_steps=more,
        )

    def _several_suspected(self, case: Case, several: Together) -> Finding:
        is_chance = _may_be_chance(case, several)
        why = "which may be chance" if is_chance else _TOO_BRIEF.format(case.recorded)
        return self.meta.unknown(
            f"Unknown: {named(several.ranks)} are late together in {several.steps} of "
            f"{case.steps_of(several.of)}, {why}.{case.known(several.of).note}",
            problem=f"{capitalised(named(several.ranks))} may delay {case.common_delay(several)}",
            ranks=several.ranks,
        )

    def _voted(self, case: Case) -> Finding:
        late, votes, known = case.late, case.votes, case.known()
        cost_ns = int(votes.median_ns[votes.leader])
        share = case.share(cost_ns)
        (cause, action, fix, restates), table = _why(case, votes.late, cost_ns)
        who = ranks_do(votes.late, "delay")
        problem = f"{who} {case.delay}"
        saving, held = _saving(votes, known), _held(restates, len(votes.late), votes)
        since, none = "", case.steps_of_none
        if begin := _begin(late, (case.rank,)):
            none = ""  # of the steps before, and some that no test is sure of
            since = _since(begin, votes.late)
            problem = f"{who} {_from(begin)}"
        they = "it" if len(votes.late) == 1 else "they"
        arrive = "arrives last" if len(votes.late) == 1 else "arrive last"
        if late.clocks_ns:
            arrive = "is blocked least" if len(votes.late) == 1 else "are blocked least"
        return self.meta.finding(
            Status.FAIL,
            f"{who} the others by {duration(cost_ns)} per step ({percent(share)}): "
            f"{they} {arrive} in "
            f"{int(votes.votes[votes.leader])} of the {votes.cast} steps that have one late rank"
            f"{none}{case.accuracy}.{since}{known.note}",
            severity=case.thresholds.severity(share * known.share),
            cause=cause,
            action=action,
            problem=problem,
            fix=fix,
            ranks=votes.late,
            steps=(begin.step,) if begin else (),
            evidence=(last_arrivals(late, votes), table),
            saving_ms_per_step=saving,
            exposed_per_saving=held,
            explains_ms=0.0 if saving else cost_ns / 1e6 * known.share * held,
            restates=restates,
            confidence="high" if _is_sure(case) else "medium",
        )

    def _several(self, case: Case, several: Together) -> Finding:
        share, known = case.share(several.cost_ns), case.known(several.of)
        who = ranks_do(several.ranks, "delay")
        (cause, action, fix, restates), table = _why(case, several.ranks, several.cost_ns)
        begin, where = _begin(case.late, several.ranks), ""
        if several.stretch and not (begin or several.is_of_all):
            where = ", from step {:,} to {:,}".format(*several.stretch)
        return self.meta.finding(
            Status.FAIL,
            f"{who} the others by {duration(several.cost_ns)} per step ({percent(share)}): they "
            f"are late together in {several.steps} of {several.of} steps{where}{case.accuracy}."
            f"{_since(begin, several.ranks) if begin else ''}{known.note}",
            title="Ranks wait for several late ranks",
            severity=case.thresholds.severity(share * known.share),
            cause=cause,
            action=action,
            problem=f"{who} {_from(begin) if begin else case.common_delay(several)}",
            fix=fix,
            ranks=several.ranks,
            steps=(begin.step,) if begin else (),
            evidence=(last_arrivals(case.late, case.votes), table),
            explains_ms=several.cost_ns / 1e6 * _held(restates, len(several.ranks), case.votes),
            restates=restates,
            confidence="medium",
        )


def _seen(case: Case, matched: list[Matched]) -> Case:
    """Return the case by blocked times if arrivals may hide a late rank.

    Unless only arrivals show one: ranks that are late by a slow transfer are blocked in it.
    """
    late = case.late
    if late.doubt_ns < case.least_ns and not late.may_hide(case.least_ns):
        return case
    late = by_blocked_time(late, matched)
    other = case._replace(late=late, votes=vote(late, case.least_ns / 2))
    return other if _has_late(other) or not _has_late(case) else case


def _works_longer(case: Case) -> bool:
    """Whether half of the delay is own work: a rank may also wait for another stage."""
    own_ns = own_work_ns(case.run[Steps], case.late.ranks)
    mine_ns = own_ns.pop(case.rank, 0.0)
    usual_ns = float(np.median([*own_ns.values()])) if own_ns else mine_ns
    return 2 * (mine_ns - usual_ns) >= max(case.votes.cost_ns, 1)


def _is_waited_for_by_early(case: Case) -> bool:
    """Say if the leader works no longer where others wait for it, and no rank waits elsewhere.

    Then the others come earlier than usual, as with less data in every tenth step. If they do
    so from some step on, the rank did not become faster with them: it is late.
    """
    late, votes, steps = case.late, case.votes, case.run[Steps]
    is_known = (late.waited_ns >= 0).all(axis=0)
    numbers, waited_ns = late.steps[is_known], late.waited_ns[:, is_known]
    row = steps.ranks[case.rank].of(numbers) if case.rank in steps.ranks else None
    if votes.is_of_most or not votes.late or late.calls > 1 or _begin(late, (case.rank,)):
        return False
    if row is None or row.exposed_ns is None or len(row.number) < len(numbers):
        return False
    place = late.ranks.index(case.rank)
    gap_ns = np.median(np.delete(waited_ns, place, axis=0), axis=0) - waited_ns[place]
    is_late = gap_ns >= case.least_ns / 2
    if is_late.all() or not is_late.any() or waited_ns[:, ~is_late].mean() >= case.least_ns / 2:
        return False
    own_ns = row.total_ns - row.exposed_ns
    own_ns = np.maximum(own_ns, np.append(own_ns[:1], own_ns[:-1]))  # at the end of the step before
    took_ns = np.array([steps.parts[number].total_ns for number in numbers.tolist()])
    more_ns = [np.median(one[is_late]) - np.median(one[~is_late]) for one in (own_ns, took_ns)]
    return bool(2 * max(more_ns) < np.median(gap_ns[is_late]))


def _has_late(case: Case) -> bool:
    return bool(case.votes.stragglers(case.least_ns) or _late_together(case))


def _late_together(case: Case) -> Together | None:
    """Return ranks that are late together, if that costs much and is neither chance nor brief."""
    found = _together(case)
    return found if found and not (case.is_brief or _may_be_chance(case, found)) else None


def _together(case: Case) -> Together | None:
    found = together(case.late, case.least_ns / 2)
    return found if found and found.cost_ns >= case.least_ns else None


def _may_be_chance(case: Case, found: Together) -> bool:
    count = len(case.late.ranks)
    # Ranks that work in step are late together also by chance: as many sets may be it.
    chances = (
        chance_of(found.steps, found.of, count),
        chance_of(found.steps, found.uneven, count // len(found.ranks)),
    )
    return max(chances) > case.thresholds.chance and not _begin(case.late, found.ranks)


def _suspects(case: Case) -> Together | None:
    """Return ranks that look late together in most steps, though that is not sure."""
    found = _together(case)
    is_most = found and 10 * found.steps >= 9 * found.uneven and 3 * found.steps >= 2 * found.of
    return found if is_most else None


def _of_hosts(run: Run, ranks: tuple[int, ...]) -> Cause | None:
    """Return cause and action if the ranks are those of hosts of their own."""
    mine = {run.hosts[rank] for rank in ranks}
    others = {host for rank, host in run.hosts.items() if rank not in ranks}
    if not others or mine & others:
        return None
    hosts = some(sorted(mine), 4)
    return Cause(
        f"They are all the ranks of {hosts}, and no other rank runs there.",
        f"Compare {hosts} with the other hosts: clocks and temperature, storage, and what else "
        "runs there.",
        f"Compare {hosts} with the other hosts",
    )


def _why_not(run: RunSummary, votes: Votes) -> str:
    """Say why no verdict is possible; empty if one is."""
    rank, cost_ns = votes.ranks[votes.leader], votes.cost_ns
    if missing := run[Run].missing_ranks:
        seen = f"; of the recorded ranks, rank {rank} comes last, by {duration(cost_ns)} per step"
        gone = "left no trace" if run[Run].selection.has_all_ranks else "are not read"
        return (
            f"{len(missing)} of {run[Run].first.world_size} ranks {gone}, and one of them may come "
            f"later{seen if votes.late else ''}."
        )
    if run[Steps].exposed_share is None:
        return "the waits for some collectives were not recorded."
    return ""


def _doubt(case: Case) -> str:
    """Say why a rank that looks late may not be; empty if it is, or if none does."""
    rank, late, votes = case.rank, case.late, case.votes
    if not votes.stragglers(case.least_ns):
        return ""
    if votes.chance > case.thresholds.chance and not _begin(late, (rank,)):
        lasts, of = int(votes.votes[votes.leader]), case.steps_of(votes.steps)
        if none := votes.steps - votes.cast:
            return (
                f"rank {rank} was the only late rank in {lasts} of {of} and no single rank "
                f"stands out in {none:,}, which may be chance"
            )
        return f"rank {rank} was last in {lasts} of {of}, which may be chance"
    return f"rank {rank} comes last, {_TOO_BRIEF.format(case.recorded)}" if case.is_brief else ""


def _held(restates: str, late: int, votes: Votes) -> float:
    """Return the share of the ranks that a delay holds: by slower transfers the late ones, too."""
    return 1.0 if restates == TRANSFERS else 1 - late / len(votes.ranks)


def _begin(late: Lateness, ranks: Sequence[int]) -> Onset | None:
    """Return from which step on these are late; None if always or for a while.

    Of a sample of calls, a single step shows several times its delay, or nothing of it.
    """
    return onset(late, [late.ranks.index(rank) for rank in ranks]) if late.calls == 1 else None


def _from(begin: Onset) -> str:
    return f"every step from {begin.step:,} on by {duration(begin.delay_ns)}"


def _since(begin: Onset, ranks: Sequence[int]) -> str:
    are = "It is" if len(ranks) == 1 else "They are"
    return f" {are} late from step {begin.step:,} on, by {duration(begin.delay_ns)} per step."


def _is_sure(case: Case) -> bool:
    """Whether all is compared beyond doubt, by steps that chance is far from explaining.

    These must make up half of the cost: in others, several ranks are late.
    """
    late, votes = case.late, case.votes
    voted_ns = int(votes.votes[votes.leader]) * int(votes.voted_ns[votes.leader])
    is_far = votes.chance <= _SURE * case.thresholds.chance
    is_alone = 2 * voted_ns >= votes.cost_ns * votes.steps
    return is_far and is_alone and late.one_in == 1 and not (late.doubt_ns or late.clocks_ns)


_SURE = 0.1
_MOST_MORE = 1000
_SUSPICIOUS = 15
"""Times the chance that proves it: what is likelier is nothing to follow up."""
_MARGIN = 1.1
"""More seconds than are needed: the steps to come may be shorter."""


def _more_steps(case: Case) -> int | None:
    """Return how many more steps like these would decide it; None if 1,000 would not.

    None as well where all this may easily be chance, or would be of low severity.
    """
    votes, thresholds, measured = case.votes, case.thresholds, case.measured_steps
    is_likely = votes.chance <= _SUSPICIOUS * thresholds.chance
    delay_share = case.share(votes.median_ns[votes.leader])
    if not is_likely or delay_share < thresholds.medium_share:
        return None
    lasting = ceil(thresholds.seconds * 1e9 * _MARGIN / case.step_ns) - measured
    share = int(votes.votes[votes.leader]) / votes.of
    for more in range(max(lasting, 1), _MOST_MORE + 1):
        of = votes.of * (measured + more) // measured
        if votes.chance_of(floor(share * of), of) <= thresholds.chance:
            return more
    return None


def _waits(late: Lateness) -> Floats:
    """Return how long a rank waited in each step, mean over ranks, in ascending order."""
    known = late.waited_ns[:, (late.waited_ns >= 0).all(axis=0)]
    return np.sort(known.mean(axis=0))


def _saving(votes: Votes, known: Known) -> Range | None:
    """Return what a step gets shorter if the rank comes when the others do.

    Then the rank that is second to last by now is waited for: the least of the waits is left. None
    where other ranks are mostly as late.
    """
    place = votes.leader
    high_ms = int(votes.median_ns[place]) / 1e6 * known.share
    least_ms = int(votes.least_ns[place]) / 1e6 * known.share
    if least_ms < _ALONE * high_ms:
        return None
    return about(min(max(least_ms, high_ms / 2), high_ms), high_ms)


def _why(case: Case, ranks: tuple[int, ...], cost_ns: int) -> tuple[Cause, Table]:
    """Return why these ranks are late, with the times that tell; by the parts of a step if known.

    Of several ranks, these are of the one for which the others wait longest.
    """
    run, late, votes = case.run, case.late, case.votes
    least_ns = case.thresholds.cause_share * cost_ns
    waits = dict(zip(votes.ranks, votes.median_ns.tolist(), strict=True))
    rank = max(ranks, key=lambda one: waits[one])
    others = [one for one in votes.ranks if one not in ranks]
    found, table = _by_time(run, votes, rank, others, least_ns)
    span = span_behind(run[Phases], rank, others, least_ns)
    cause = by_span(span, rank, found) if span else found
    if slower := by_transfers(late, ranks, least_ns, run[Run]):
        cause = slower
    elif len(ranks) > 1:
        text = f"Rank {rank} is the latest of them. {cause.cause}"
        if shared := _of_hosts(run[Run], ranks) or by_place(run[Arrivals].matched, ranks):
            cause = shared._replace(cause=f"{shared.cause} {text}")
        else:
            cause = Cause(text, cause.action, "Compare them with the other ranks")
    return cause, table


def _by_time(
    run: RunSummary, votes: Votes, rank: int, others: list[int], least_ns: float
) -> tuple[Cause, Table]:
    """Return in which part of its own time a rank is late."""
    facts, steps = run[Arrivals].ranks, run[Steps]
    times = busy_times(steps, {one: row.before_ns for one, row in facts.items()})
    causes = BY_PHASES if times[rank].idle_ns is None else BY_KERNELS
    more = excess(times, rank, others)
    count = max(len(steps.measured), 1)
    rooted = {
        one: {name: ns / count for name, ns in facts[one].rooted_ns.items()}
        for one in (rank, *others)
    }
    # A part of the wait for it is often in the work that its gather delays.
    root_ns = max(least_ns / 2, *more.values(), 0.0)
    root = by_root(rooted, rank, others, root_ns) if others else None
    if times[rank].compute_ns is not None and (
        causes is BY_KERNELS or facts[rank].before_ns is not None
    ):
        found = by_parts(causes, rank, more, least_ns)
        return found or root or unknown(rank, has_parts=True), own_time(times, votes)
    copies = {part: more_ns for part, more_ns in more.items() if part == "copies_ns"}
    found = by_parts(causes, rank, copies, least_ns)
    paces = {one: row.pace for one, row in facts.items()}
    mine, usual = paces[rank], others_pace(paces, others)
    if found is None and mine is not None and usual is not None:
        on_device = steps.ranks[rank].on_device
        found = by_pace(rank, mine, usual, least_ns, on_device=on_device)
    return found or root or unknown(rank, has_parts=False), pace_table(paces, votes)
