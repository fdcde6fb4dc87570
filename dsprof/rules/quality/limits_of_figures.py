"""What makes the figures of a run less exact than they look, a sentence each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.findings.wording import duration, percent, plural, ranks_do


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From where on an inexactness is mentioned."""

    clock_bound_ms: float = 1.0  # error of the clocks of several hosts
    cost_share: float = 0.02  # dsprof in the training threads / time in steps, median over ranks
    after_s: float = 1.0  # from the end of the last step to that of the last collective
    after_share: float = 0.05  # the same / time in steps


def limits_of_figures(run: RunSummary, thresholds: Thresholds) -> Iterable[str]:
    """Say each limit of the figures."""
    facts, steps = run[Run], run[Steps]
    if facts.selection.steps is None:
        yield from _after_steps(run[Endings], steps, thresholds)
    yield from _without_steps(facts, steps)
    yield from _of_recording(facts)
    yield from _of_counted_steps(facts, steps)
    yield from _of_clocks_and_cost(facts, steps, thresholds)


def _after_steps(endings: Endings, steps: Steps, thresholds: Thresholds) -> Iterable[str]:
    """Say how long the rank communicated that went on longest after its last step."""
    rank = max(endings.ranks, key=lambda one: endings.ranks[one].after_steps_ns, default=None)
    if rank is None:
        return
    ending = endings.ranks[rank]
    after_ns, calls = ending.after_steps_ns, ending.calls_after_steps
    least_ns = max(thresholds.after_s * 1e9, thresholds.after_share * steps.total.total_ns)
    if after_ns >= least_ns:
        has_failed = ending.trailer is not None and ending.trailer.exception
        example = "a step that did not end" if has_failed else "an evaluation or a checkpoint"
        yield (
            f"Figures per step exclude {duration(after_ns)} in which rank {rank} communicated "
            f"after its last step ({plural(calls, 'collective')}), such as {example}."
        )


def _without_steps(run: Run, steps: Steps) -> Iterable[str]:
    if stepless := _stepless(run, steps):
        yield (
            f"{ranks_do(stepless, 'mark')} no step: where not all ranks have an optimizer, call "
            "dsprof.step() on all of them, once in each round."
        )
    if partial := [rank for rank in steps.partial_ranks if rank not in stepless]:
        lacking = ranks_do(partial, "lack")
        yield f"{lacking} a part of the steps; there, means are over the other ranks."


def _stepless(run: Run, steps: Steps) -> list[int]:
    """Return ranks that ended by themselves without a step, such as actors beside a learner.

    Of a part of the steps, a rank may only have kept no details.
    """
    if run.selection.steps is not None:
        return []
    return [
        rank
        for rank in steps.partial_ranks
        if not len(steps.ranks[rank].number) and run.ranks[rank].trailer is not None
    ]


def _of_recording(run: Run) -> Iterable[str]:
    trailers = list(run.trailers)
    if unmatched := sum(trailer.unmatched_waits for trailer in trailers):
        yield f"{plural(unmatched, 'wait')} could not be matched to a collective."
    if lost := sum(trailer.lost_stalls for trailer in trailers):
        yield f"Excluded: {plural(lost, 'device stall')} without a recorded end."
    if given_up := sum(trailer.given_up for trailer in trailers):
        yield f"{plural(given_up, 'collective')} not followed: too many others were in flight."
    for hook, why in dict.fromkeys(
        broken for one in trailers for broken in one.failed_hooks.items()
    ):
        yield f"The hook {hook} switched itself off: {why}."
    if run.strangers:
        yield f"Skipped {plural(len(run.strangers), 'file')}, named under data quality."


def _of_counted_steps(run: Run, steps: Steps) -> Iterable[str]:
    if counted := len(steps.counted):
        of = f"{counted:,} of {len(steps.numbers):,} steps were only counted"
        yield (
            f"{of}; the verdicts use the counters."
            if steps.is_counted
            else f"{of} and are excluded from averages."
        )
    if any(trailer.budget_spent for trailer in run.trailers):
        yield "The trace reached budget_mb before the run ended; later steps were only counted."


def _of_clocks_and_cost(run: Run, steps: Steps, thresholds: Thresholds) -> Iterable[str]:
    if run.clock_bound_ns is None:
        yield f"Clocks are aligned by {run.clock_method}."
    elif run.clock_bound_ns > thresholds.clock_bound_ms * 1e6:
        yield f"Clocks of the hosts are aligned to {duration(run.clock_bound_ns)}."
    costs = run.cost_shares(steps)
    if costs is not None and costs[0] > thresholds.cost_share:
        yield f"Recording took about {percent(costs[0])} of the time in steps (estimate)."
