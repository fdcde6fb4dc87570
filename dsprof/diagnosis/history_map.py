"""Ranks by time of a rolling recording: the map of steps over all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from dsprof.analysis.aggregates.history import History
from dsprof.analysis.aggregates.rank_times import RankSpans, RankTimes
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.run.busy_spans import busy_spans
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.parts.steps import StepMap, StepMark
from dsprof.diagnosis.step_map import NO_DATA, Cells, Layout, Times, map_of
from dsprof.findings.wording import duration


def history_map(summary: RunSummary) -> StepMap:
    """Lay out all steps, a column for each span of time or for several; empty without sums."""
    laid = history_layout(summary)
    if laid is None:
        return StepMap()
    made, rows, columns = map_of(laid, summary[Run])
    made.marks = [*_marks(summary, laid.ranks, rows[0].stop, columns[0].stop)]
    return made


def history_layout(summary: RunSummary) -> Layout | None:
    """Lay out all spans of time; None without sums."""
    found = summary[RankTimes].aligned()
    begins = _begins(found)
    if not len(begins):
        return None
    return Layout(sorted(found), [*_steps(found, begins)], partial(_laid_out, found, begins))


def _begins(found: Mapping[int, RankSpans]) -> Cells:
    begins = {begin for spans in found.values() for begin in spans.begin_s.tolist()}
    return np.array(sorted(begins), np.int64)


def _laid_out(found: Mapping[int, RankSpans], begins: Cells, ranks: Sequence[int]) -> Times:
    cells = Times(*(np.full((len(ranks), len(begins)), NO_DATA) for _ in Times._fields))
    for i, rank in enumerate(ranks):
        spans = found[rank]
        place, count = np.searchsorted(begins, spans.begin_s), np.maximum(spans.steps, 1)
        cells.total[i, place] = spans.total_ns // count
        cells.exposed[i, place] = np.minimum(spans.waited_ns, spans.total_ns) // count
    return cells


def _steps(found: Mapping[int, RankSpans], begins: Cells) -> Iterator[tuple[int, int]]:
    """Yield the first and the last step of each span, on any rank."""
    first = np.full(len(begins), np.iinfo(np.int64).max)
    last = np.zeros(len(begins), np.int64)
    for spans in found.values():
        place = np.searchsorted(begins, spans.begin_s)
        first[place] = np.minimum(first[place], spans.first_step)
        last[place] = np.maximum(last[place], spans.last_step)
    yield from zip(first.tolist(), last.tolist(), strict=True)


def _marks(
    summary: RunSummary, ranks: Sequence[int], height: int, width: int
) -> Iterator[StepMark]:
    begins = _begins(summary[RankTimes].aligned())
    for one in busy_spans(summary[History]):
        place = int(np.searchsorted(begins, one.begin_s, side="right")) - 1
        if place >= 0 and one.rank is not None and one.rank in ranks:
            yield StepMark(
                kind="straggler",
                step=one.step,
                rank=one.rank,
                column=place // width,
                row=ranks.index(one.rank) // height,
                text=f"Rank {one.rank} works {duration(one.more_ns)} longer per step",
            )
