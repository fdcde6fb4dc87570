"""The steps that the report shows in detail, and the ranks that it draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set

from dsprof.analysis.aggregates.timelines import RANKS, SAMPLE, Timelines, spread
from dsprof.analysis.rank.bars import StepDetail
from dsprof.analysis.summary import RankClock
from dsprof.diagnosis.parts.steps import StepMap
from dsprof.diagnosis.parts.timelines import Bar, Timeline
from dsprof.diagnosis.timeline_places import is_shown, own_steps
from dsprof.findings.finding import Finding

Draw = Callable[
    [Mapping[int, RankClock], Mapping[int, Set[int]]], Mapping[int, Mapping[int, StepDetail]]
]
"""Reads ranks again and draws steps of them, given the clocks and what is wanted by rank."""

_SAMPLE_BARS = 20_000
"""All steps beside the worst, the median and the first have about this many bars together: they
make the size of a report."""
_RANKS_OF_A_FINDING = 4


def timelines(
    found: Timelines,
    findings: Sequence[Finding],
    step_map: StepMap,
    draw: Draw | None = None,
) -> list[Timeline]:
    """Show the worst, the median and the first step, those of findings, then a sample of others.

    Without `draw`, only what is drawn already can be shown.
    """
    looked_at = [one for one in findings if is_shown(one)]
    chosen = found.choose()
    picked = {number for _, number in chosen}
    named = dict.fromkeys(_named(found, looked_at, step_map, picked))
    chosen += [("named", number) for number in named]
    chosen += [("sample", n) for n in _sample(found, {*picked, *named})]
    if draw is not None:
        found = _completed(found, chosen, chosen_ranks(found.clocks, looked_at, step_map), draw)
    shown = [(why, number) for why, number in chosen if found.steps.get(number)]
    return [timeline(number, why, found.steps[number]) for why, number in shown]


def _named(
    found: Timelines, findings: Sequence[Finding], step_map: StepMap, picked: Set[int]
) -> Iterator[int]:
    """Yield a step of each finding without a picked step, preferably a drawn one."""
    for one in findings:
        own = [step for step in own_steps(one, step_map) if step in found.durations]
        if picked.isdisjoint(own):
            yield from sorted(own, key=lambda step: step not in found.steps)[:1]


def _sample(found: Timelines, shown: Set[int]) -> list[int]:
    """Return steps spread over the run, as many as there is room for; none of only some ranks."""
    others = sorted(n for n in found.steps if n >= 0 and n not in shown and found.steps[n])
    most = max((len(found.steps[n]) for n in others), default=0)
    others = [n for n in others if len(found.steps[n]) == most]
    bars = sum(len(detail.bars) for n in others for detail in found.steps[n].values())
    affordable = _SAMPLE_BARS * len(others) // max(bars, 1)
    return spread(others, min(affordable, SAMPLE))


def _completed(
    found: Timelines, chosen: Sequence[tuple[str, int]], ranks: tuple[int, ...], draw: Draw
) -> Timelines:
    """Draw what is missing: of ranks not drawn yet all, of others what they could not foresee."""
    unforeseen = [number for why, number in chosen if why != "sample"]
    drawn = set(ranks).intersection(found.ranks)
    wanted = found.missing(unforeseen, drawn)
    wanted |= found.missing([number for _, number in chosen], set(ranks) - drawn)
    return found.with_details(draw(found.clocks, wanted) if wanted else {}, ranks)


def chosen_ranks(
    ranks: Collection[int], findings: Sequence[Finding], step_map: StepMap
) -> tuple[int, ...]:
    """Return the first and the last rank, those of findings, stragglers, then the lowest: 16."""
    in_order = sorted(ranks)
    named = (rank for one in findings for rank in one.ranks[:_RANKS_OF_A_FINDING])
    late = Counter(mark.rank for mark in step_map.marks if mark.rank is not None)
    stragglers = (rank for rank, _ in late.most_common())
    by_interest = [*in_order[:1], *in_order[-1:], *named, *stragglers, *in_order]
    known = [rank for rank in dict.fromkeys(by_interest) if rank in ranks]
    return tuple(sorted(known[:RANKS]))


def timeline(number: int, why: str, ranks: Mapping[int, StepDetail]) -> Timeline:
    """Lay out one step of several ranks."""
    start = min(detail.start_ns for detail in ranks.values())
    end = max(detail.end_ns for detail in ranks.values())
    return Timeline(
        step=number,
        why=why,
        duration_ns=end - start,
        bars=[
            Bar(
                rank=rank,
                lane=bar.lane,
                kind=bar.kind,
                start_ns=bar.start_ns - start,
                end_ns=(end if bar.is_open else bar.end_ns) - start,
                label=bar.label,
                group=bar.group,
                module=bar.module,
            )
            for rank, detail in ranks.items()
            for bar in detail.bars
        ],
        left_out=sum(detail.left_out for detail in ranks.values()),
    )
