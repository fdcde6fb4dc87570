"""periodic-slow-step: every so many steps one takes far longer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dsprof.analysis.aggregates.history import History
from dsprof.analysis.aggregates.phases import Phases
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.busy_spans import BusySpan, busy_spans
from dsprof.analysis.run.delays import SLOW_SHARE, Delays, delays
from dsprof.analysis.run.own_periods import OwnPeriods, own_periods
from dsprof.analysis.run.series import (
    Period,
    periods_of,
    slow_places,
    unsettled,
    without_spells,
)
from dsprof.analysis.run.step_columns import StepColumns, step_columns
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import count, duration, named, percent, plural, ranks_do
from dsprof.rules.causes import IN_TURN, LATE
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.steps.step_parts import PARTS, few_in_turn, growing_part, part_columns, too_few
from dsprof.trace.columns import BoolArray

_ROWS = 16
_SURE = 10
"""Fewer steps that a rank delays may be noise of the machine."""
_MULTIPLE = 2
"""From here on, a multiple reads better than hundreds of percent."""
_CHANCE = 0.001
"""That slow steps follow each other in an unordered run."""
_OF_A_RANK = "A rank delays occasional steps"

_COLLECT = (
    "Try gc.freeze() after the first steps and gc.disable(), and call gc.collect() on all ranks in "
    "the same step; if that changes nothing, inspect those steps in the timeline."
)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Limits of a slow step and of its cost."""

    steps: int = 12  # after warm-up; fewer do not tell
    # Of the median: by so much a slow step is longer.
    slow_share: float = field(default=SLOW_SHARE, metadata={"maximum": None})
    slow_steps: int = 3  # one or two may be anything, and count from `outside_share` on
    cost_share: float = 0.01  # of all steps, that slow ones take longer; below, nothing is said
    fail_share: float = 0.05
    # The same, of what all ranks do outside the phases, or without a period.
    outside_share: float = 0.2
    part_share: float = 0.6  # of the excess, that one part must explain to be named


class PeriodicSlowStep(Rule):
    """Separates periodic slow steps from occasional ones.

    What all ranks do outside the phases every n steps is what the program is for: a checkpoint, an
    evaluation. That is information, unless it takes much of the run. What delays the phases, or
    only one rank, is a problem.
    """

    meta = RuleMeta(
        id="periodic-slow-step",
        title="No periodic slow steps",
        failing_title="Slow steps recur periodically",
        why="A checkpoint, an evaluation or a garbage collection every n steps adds 1/n of its "
        "time to each step.",
        category="steps",
        order=420,
        needs=(History, Phases, Run, Steps),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Name the period, what it costs, and the part of the step where it falls."""
        same = run[Steps].throughout
        columns = step_columns(run[Steps], same.newest, run[Run].missing_ranks)
        busy = busy_spans(run[History])
        count = len(columns.number)
        if count < thresholds.steps and not busy:
            yield too_few(self.meta, run[Steps], count, thresholds.steps)
            return
        times = without_spells(columns.total_ns, thresholds.slow_share, _CHANCE)
        slow = slow_places(times, thresholds.slow_share)
        if count and not same.newest_from:  # of a slow start, only steps longer than the one before
            start = times[: unsettled(times)]
            more = np.diff(start, prepend=np.inf)
            slow[: len(start)] &= more > thresholds.slow_share * float(np.median(times))
        usual_ns = np.median(times[~slow]) if count else 0.0
        excess_ns = np.where(slow, times - usual_ns, 0.0)
        share = float(excess_ns.sum()) / max(float(times.sum()), 1.0)
        is_enough = np.count_nonzero(slow) >= thresholds.slow_steps
        costs = share >= (thresholds.cost_share if is_enough else thresholds.outside_share)
        periods = [
            period
            for period in (periods_of(slow, times) if costs and not run[Steps].is_sampled else [])
            if excess_ns[[*period.places]].sum() >= thresholds.cost_share * times.sum()
        ]
        own = _own_periods(run[Steps], columns, thresholds)
        if own:
            periods = [one for one in periods if not _ranks_in_turn(columns, slow, one.mask(slow))]
            yield self._own(columns, own, thresholds)
        if periods or own:
            places = Counter(place for one in periods for place in one.places)
            met = [place for place, periods_there in places.items() if periods_there > 1]
            shared = np.isin(np.arange(len(slow)), met)
            longer_ns = {name: sums.longer_ns for name, sums in run[Phases].rows.items()}
            least_ns = thresholds.part_share * sum(longer_ns.values())
            varies = longer_ns.get("step", 0) > least_ns
            yield from (
                self._periodic(columns, slow, one, shared, thresholds, update_varies=varies)
                for one in periods
            )
        elif found := delays(run[Steps], thresholds.slow_share):
            of = max(run[Steps].recorded, run[History].steps)
            yield self._delayed(found, of, thresholds) if found.ranks else self._long(found, of)
        elif busy and sum(span.late_steps for span in busy) >= thresholds.slow_steps:
            rank, of = busy[0].rank, run[History].steps  # all spans are of the same rank
            yield self._long_spans(busy, of) if rank is None else self._busy(rank, busy, of)
        elif costs:
            yield self._scattered(columns, slow, share, thresholds)

    def _own(self, columns: StepColumns, own: OwnPeriods, thresholds: Thresholds) -> Finding:
        share = own.cost_ns / float(columns.total_ns.mean())
        fault = share >= thresholds.fail_share
        least, most = min(own.periods.values()), max(own.periods.values())
        every = f"every {least}{f' to {most}' * (most > least)} steps"
        ranks = own.periods
        longer = f"Each of {len(ranks):,} ranks works {duration(own.excess_ns)} longer {every}"
        return self.meta.finding(
            Status.FAIL if fault else Status.INFO,
            f"{longer}, in steps of its own, and the others wait: {duration(own.cost_ns)} per "
            f"step ({percent(share)}).",
            title="Ranks work longer in turn, each periodically",
            severity=Severity.MEDIUM,
            cause="What each rank does periodically is not in the same steps on all: Python's "
            "garbage collector, an emptied allocator cache, logging.",
            action=_COLLECT,
            problem=f"{longer}, in turn",
            fix="Collect garbage on all ranks in the same step",
            evidence=(
                Table(
                    columns=(Column("rank"), Column("steps from one to the next", "count")),
                    rows=tuple(own.periods.items())[:_ROWS],
                    caption="Periods of longer steps",
                ),
            ),
            explains_ms=own.cost_ns / 1e6 * (1 - 1 / len(ranks)),
            confidence="medium",
        )

    def _delayed(self, found: Delays, of: int, thresholds: Thresholds) -> Finding:
        count, (first, *_, last) = len(found.steps), found.steps
        worst = found.steps[int(np.argmax(found.lengths_ns))]
        who = f"{ranks_do(found.ranks, 'delay')} {'' if found.are_all else 'at least '}"
        delays = f"{who}{count:,} of {of:,} steps by {duration(found.excess_ns)}"
        share = _of_run(count * found.excess_ns, of * found.usual_ns)
        return self.meta.finding(
            Status.FAIL if share >= thresholds.outside_share else Status.INFO,
            f"{delays} ({_beside_usual(found.excess_ns, found.usual_ns)}) between "
            f"steps {first:,} and {last:,}; the other ranks wait.",
            title=_OF_A_RANK,
            severity=Severity.MEDIUM,
            cause=_alone(found.ranks, count, is_known=True)[0],
            action=f"{_search(found.ranks)} Inspect the longest with --steps {worst}:{worst + 1}, "
            f"all with --steps {first}:{last + 1}.",
            problem=f"{delays}: {percent(share)} of the run",
            ranks=found.ranks,
            steps=_longest(found.steps, found.lengths_ns),
            restates=LATE,
            confidence="medium" if count >= _SURE else "low",
        )

    def _busy(self, rank: int, spans: Sequence[BusySpan], of: int) -> Finding:
        worst = max(spans, key=lambda span: span.more_ns)
        count, lost_ns = sum(s.late_steps for s in spans), sum(s.lost_ns for s in spans)
        delays = f"Rank {rank} delays at least {count:,} of {of:,} steps"
        delay, share = duration(lost_ns / count), _of_run(lost_ns, of * worst.usual_ns)
        return self.meta.finding(
            Status.INFO,
            f"{delays} by {delay} ({_beside_usual(lost_ns / count, worst.usual_ns)}), "
            f"most around step {worst.step:,}; the other ranks wait.",
            title=_OF_A_RANK,
            cause=f"Rank {rank} is blocked in communication for less time than the others, "
            "by as much; only sums over time show it.",
            action=f"{_search((rank,))} If details of these steps were kept, "
            f"inspect them with --steps {worst.step}:{worst.step + 1}.",
            problem=f"{delays} by {delay}: {percent(share)} of the run",
            ranks=(rank,),
            steps=tuple(sorted({span.step for span in spans}))[:_ROWS],
            evidence=(
                Table(
                    columns=(
                        Column("slowest step"),
                        Column("span", "ns"),
                        Column("own time above the mean of the others", "ns"),
                    ),
                    rows=tuple(
                        (span.step, span.length_s * 10**9, span.more_ns) for span in spans[:_ROWS]
                    ),
                    caption=f"Spans in which rank {rank} works longest; means per step",
                ),
            ),
            restates=LATE,
            confidence="medium",
        )

    def _long(self, found: Delays, of: int) -> Finding:
        count = f"{'' if found.are_all else 'At least '}{_slow(len(found.steps), of)}"
        longest = _longest(found.steps, found.lengths_ns)
        return self._unmeasured(count, found.excess_ns, found.usual_ns, found.steps, longest)

    def _long_spans(self, spans: Sequence[BusySpan], of: int) -> Finding:
        late, lost_ns = sum(s.late_steps for s in spans), sum(s.lost_ns for s in spans)
        count, usual_ns = f"At least {_slow(late, of)}", spans[0].usual_ns
        steps = tuple(sorted({span.step for span in spans}))
        return self._unmeasured(count, lost_ns / late, usual_ns, steps, steps[:_ROWS])

    def _unmeasured(
        self,
        count: str,
        excess_ns: float,
        usual_ns: int,
        steps: Sequence[int],
        longest: tuple[int, ...],
    ) -> Finding:
        longer = f"{count} {duration(excess_ns)} longer"
        return self.meta.finding(
            Status.INFO,
            f"{longer} ({percent(excess_ns / usual_ns)}). Unknown: whether one rank delays them.",
            title="Occasional steps take far longer",
            cause="Unknown: no time blocked in communication was measured.",
            action=f"Inspect them with --steps {steps[0]}:{steps[-1] + 1}.",
            problem=longer,
            steps=longest,
            confidence="low",
        )

    def _scattered(
        self, columns: StepColumns, slow: np.ndarray, share: float, thresholds: Thresholds
    ) -> Finding:
        count = int(np.count_nonzero(slow))
        longer_ns = float(np.median(columns.total_ns[slow]) - np.median(columns.total_ns[~slow]))
        growth = columns.growth(~slow, slow)
        part = growing_part(growth, longer_ns, thresholds.part_share)
        fix = "Check what else runs on the hosts then"
        cause, action = (
            f"The longer part is {PARTS[part]}; the slow steps follow no period."
            if part in PARTS and part != "rest_ns"
            else "Unknown: the slow steps follow no period.",
            "Inspect these steps in the timeline, and check what else runs on the hosts then.",
        )
        if part == "other_ns":
            fix = "Find what the loop does there"
            cause, action = _why(columns, part, (), "", slow)
        # What a rank does at the end of its step, the others wait for in the next one.
        first = slow & ~np.append([False], slow[:-1])
        ranks = columns.ranks_behind(~slow, first, longer_ns / 2)
        in_turn = part == "exposed_ns" and not ranks
        turns = _ranks_in_turn(columns, slow, slow) if in_turn else ()
        if repeats := _repeats_work(columns, ~slow, slow):
            ranks, fix = (), "Find why optimizer steps are skipped"
            cause, action = _REPEATED
        elif ranks:
            is_known = _others_wait(columns, slow)
            fix = f"Find what only {_do(ranks)} then"
            cause, action = _alone(ranks, count, is_known=is_known)
        elif turns:
            cause, action = _in_turn(turns)
        longer = f"{_slow(count, len(slow))} far longer"
        than = "its neighbours" if count == 1 else "their neighbours, without a period"
        return self.meta.finding(
            Status.FAIL
            if share >= thresholds.outside_share and not (turns or repeats)
            else Status.INFO,
            f"{longer} than {than}: {percent(share)} of the time.",
            title="Occasional steps take far longer",
            severity=Severity.MEDIUM,
            cause=cause,
            action=action,
            problem=f"{longer}: {percent(share)} of the time",
            fix=fix,
            ranks=ranks,
            steps=_longest(columns.number[slow], columns.total_ns[slow]),
            evidence=(_table(columns, slow),),
            explains_ms=max(growth.get("exposed_ns", 0.0), 0.0) * float(slow.mean()) / 1e6,
            restates=LATE if ranks else IN_TURN if turns else "",
            confidence="low",
        )

    def _periodic(
        self,
        columns: StepColumns,
        slow: BoolArray,
        period: Period,
        shared: BoolArray,
        thresholds: Thresholds,
        *,
        update_varies: bool,
    ) -> Finding:
        """Judge one period; `update_varies`: of the phases, optimizer steps vary most in length."""
        mine, count_all = period.mask(slow), len(period.places)
        if (mine & ~shared).any():  # in the others, two periods meet
            mine &= ~shared
        excess_ns = float(np.median(columns.total_ns[mine]) - np.median(columns.total_ns[~slow]))
        cost_ns = excess_ns * count_all / len(mine)
        share = excess_ns * count_all / float(columns.total_ns.sum())
        part = growing_part(columns.growth(~slow, mine), excess_ns, thresholds.part_share)
        repeats = _repeats_work(columns, ~slow, mine)
        # A slower rank is so in each of several iterations.
        ranks = () if repeats else columns.ranks_behind(~slow, mine, excess_ns / 2)
        when = ""
        if not ranks and part == "exposed_ns":
            # What a rank does at the end of its step, the others wait for in the next one.
            before = np.append(mine[1:], [False])
            ranks = columns.ranks_behind(~(slow | before), before, excess_ns / 2)
            when = ", at the end of the step before"
        forwards = columns.forwards
        evaluates = forwards is not None and bool(
            np.median(forwards[mine]) > np.median(forwards[~slow])
        )
        holds_up = bool(ranks) or (part == "compute_ns" and not (evaluates or repeats))
        least = thresholds.fail_share if holds_up else thresholds.outside_share
        fault = share >= least and not repeats
        in_turn = part == "exposed_ns" and not ranks
        turns = _ranks_in_turn(columns, slow, mine) if in_turn else ()
        if repeats:
            cause, action = _REPEATED
        elif turns:
            cause, action = _in_turn(turns)
        elif evaluates and not ranks:
            cause, action = _evaluation(columns)
        elif in_turn and (calls := _median_calls(columns, mine)) > _median_calls(columns, ~slow):
            cause = (
                f"{_BY_PART[part][0].format(columns.ranks)[:-1]}: {plural(calls, 'collective')} in "
                f"these steps, {count(_median_calls(columns, ~slow))} in others."
            )
            action = _LESS_OFTEN
        elif part == "compute_ns" and not ranks and update_varies:
            cause, action = _UPDATE[0].format(columns.ranks), _UPDATE[1]
        else:
            cause, action = _why(columns, part, ranks, when, mine)
        return self.meta.finding(
            Status.FAIL if fault else Status.INFO,
            f"Every {period.period} steps, first in step {columns.number[period.first]}, a step "
            f"takes {duration(excess_ns)} longer: {duration(cost_ns)} per step ({percent(share)}).",
            severity=Severity.MEDIUM,
            cause=cause,
            action=action,
            problem=f"Every {period.period} steps one takes {duration(excess_ns)} longer",
            ranks=ranks,
            steps=_longest(columns.number[mine], columns.total_ns[mine]),
            evidence=(_table(columns, mine),),
            explains_ms=float(cost_ns) / 1e6 if part == "exposed_ns" else 0.0,
            restates=LATE if ranks else IN_TURN if turns else "",
            confidence="medium",
        )


def _ranks_in_turn(columns: StepColumns, slow: BoolArray, mine: BoolArray) -> tuple[int, ...]:
    """Return the ranks of which other ones work longer each time, by half of the excess."""
    more_ns = np.median(columns.total_ns[mine]) - np.median(columns.total_ns[~slow])
    return columns.ranks_in_turn(~slow, mine, float(more_ns) / 2)


def _own_periods(steps: Steps, columns: StepColumns, thresholds: Thresholds) -> OwnPeriods | None:
    """Return periods of ranks if they cost enough; of a sample of steps none is known."""
    found = None if steps.is_sampled else own_periods(columns, thresholds.slow_share)
    least_ns = thresholds.cost_share * float(columns.total_ns.mean()) if found else 0.0
    return found if found and found.cost_ns >= least_ns else None


def _median_calls(columns: StepColumns, chosen: BoolArray) -> float:
    return float(np.median(columns.work["calls"][chosen]))


_LESS_OFTEN = (
    "Call the collectives of these steps less often: the communication table shows them with a "
    "fraction of a call per step."
)
_UPDATE = (
    "The extra time is in the optimizer step, on {}: an optimizer that does more every N steps, as "
    "Shampoo and SOAP do, or Python's garbage collector.",
    "Let the optimizer do that work less often (`precondition_frequency`), or distribute it "
    "over the ranks. Otherwise inspect these steps in the timeline.",
)
_REPEATED = (
    "These steps have more micro-steps than others: the program skipped an optimizer step, or "
    "accumulated more gradients.",
    "If it skips steps, find what made their gradients unusable: with loss scaling, overflows.",
)


def _repeats_work(columns: StepColumns, usual: BoolArray, slow: BoolArray) -> bool:
    """Say whether more micro-steps explain at least half of what slow steps take longer."""
    more, longer = (
        np.median(column[slow]) / max(np.median(column[usual]), 1) - 1
        for column in (columns.work["micro_steps"], columns.total_ns)
    )
    return bool(more > 0 and 2 * more >= longer)


def _evaluation(columns: StepColumns) -> tuple[str, str]:
    return (
        f"More forwards run in these steps than in others, on {columns.ranks}: an evaluation, or "
        "the generation of samples.",
        "If it costs too much, do it less often, on fewer samples, or in a separate job.",
    )


def _search(ranks: Sequence[int]) -> str:
    return (
        f"Find what only {_do(ranks)} then: other programs on the host, a throttled device, slow "
        "storage, long samples."
    )


def _beside_usual(more_ns: float, usual_ns: float) -> str:
    """Compare with a usual step: a few hundred percent read worse than a multiple."""
    times = more_ns / usual_ns
    return (
        f"{count(times)} times a usual step"
        if times >= _MULTIPLE
        else f"{percent(times)} of a usual step"
    )


def _of_run(lost_ns: float, usual_ns: float) -> float:
    """Return the share of a run that is lost beside its usual time."""
    return lost_ns / (usual_ns + lost_ns)


def _alone(ranks: Sequence[int], count: int, *, is_known: bool) -> tuple[str, str]:
    steps = "this step" if count == 1 else "these steps"
    waits = ", and the others wait in their collectives" * is_known
    return (
        f"{ranks_do(ranks, 'work')} longer in {steps}{waits}.",
        f"{_search(ranks)} Inspect {steps} in the timeline.",
    )


def _do(ranks: Sequence[int]) -> str:
    return f"{named(ranks)} {'does' if len(ranks) == 1 else 'do'}"


def _in_turn(ranks: Sequence[int]) -> tuple[str, str]:
    return (
        f"{few_in_turn(ranks)} Possible causes: long samples, recompilation by torch.compile, "
        "Python's garbage collector.",
        "Inspect these steps in the timeline. With torch.compile, run with TORCH_LOGS=recompiles.",
    )


def _others_wait(columns: StepColumns, slow: BoolArray) -> bool:
    """Whether all ranks recorded these steps, and most of the steps call a collective."""
    return not columns.left_out and _median_calls(columns, slow) > 0


def _why(
    columns: StepColumns, part: str, ranks: tuple[int, ...], when: str, slow: BoolArray
) -> tuple[str, str]:
    """Return cause and action by where the time falls, and `when` on these ranks."""
    if ranks:
        return (
            f"The extra time is on {named(ranks)}{when}"
            f"{'; the others wait in their collectives' * _others_wait(columns, slow)}.",
            f"Find what only {_do(ranks)} then: a checkpoint, logging, an evaluation. "
            "Move it to a separate thread or process, or distribute it over the ranks.",
        )
    cause, action = _BY_PART.get(part, _UNKNOWN)
    return cause.format(columns.ranks), action


_BY_PART = {
    "compute_ns": (
        "The extra time is in forward, backward or optimizer step, on {}: Python's garbage "
        "collector, an emptied allocator cache, or work that the model does every N steps.",
        _COLLECT,
    ),
    "other_ns": (
        "The extra time is outside forward, backward and step, on {}: a checkpoint, an evaluation, "
        "the generation of samples, the end of an epoch of the data loader.",
        "If it is a checkpoint, write it in the background or less often; if it is the data "
        "loader, keep its workers (persistent_workers=True).",
    ),
    "rest_ns": (
        "The extra time is not exposed communication, on {}: a checkpoint, an evaluation, the "
        "generation of samples, the end of an epoch of the data loader, Python's garbage "
        "collector.",
        "Inspect these steps in the timeline, and mark the parts of the loop with "
        "dsprof.annotate().",
    ),
    "exposed_ns": (
        "The extra time is exposed communication, on {}.",
        "Inspect the collectives of these steps in the timeline.",
    ),
}
"""Cause and action by the part of the step that is longer, on all ranks alike."""
_UNKNOWN = "The slower part of the step is unknown.", "Inspect these steps in the timeline."


def _slow(count: int, of: int) -> str:
    return f"{count:,} of {of:,} steps {'takes' if count == 1 else 'take'}"


def _longest(steps: npt.ArrayLike, lengths_ns: npt.ArrayLike) -> tuple[int, ...]:
    """Return the longest of some steps, ascending: the timeline shows the longest of all."""
    chosen = np.argsort(-np.array(lengths_ns), kind="stable")[:_ROWS]
    return tuple(np.sort(np.array(steps)[chosen]).tolist())


def _table(columns: StepColumns, chosen: np.ndarray) -> Table:
    places = np.flatnonzero(chosen)[:_ROWS]
    named_columns = part_columns(columns)
    rows = [
        (int(columns.number[i]), *(round(float(c[i])) for c in named_columns.values()))
        for i in places
    ]
    usual = (round(float(np.median(c[~chosen]))) for c in named_columns.values())
    return Table(
        columns=(Column("step"), *(Column(name, "ns") for name in named_columns)),
        rows=(("median of the others", *usual), *rows),
        caption="Mean over ranks",
    )
