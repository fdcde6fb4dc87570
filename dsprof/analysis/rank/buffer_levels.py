"""How much a rank holds at once for communication, step by step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dsprof.analysis.rank.intervals import Array, completed
from dsprof.analysis.rank.steps import in_steps
from dsprof.trace.rank_trace import RankTrace


class Gathered(NamedTuple):
    """Parameters that were there at once."""

    elements: int = 0
    nbytes: int = 0


def gathered_by_step(trace: RankTrace, steps: Array) -> dict[int, Gathered]:
    """Return the most parameters that were there at once in each of `steps` (ascending)."""
    rows = trace.collectives
    gathers = np.flatnonzero((rows.fetch > 0) & rows.on_wire & in_steps(rows.step, steps))
    elements = int(rows.elements[gathers].sum())
    if not elements:
        return {}
    wanted = set(steps.tolist())
    releases = [f for f in trace.fetches if f.kind == "release" and f.step in wanted]
    most = _highest_by_step(
        np.concatenate([rows.step[gathers], [f.step for f in releases]]),
        np.concatenate([rows.issue_ns[gathers], [f.end_ns for f in releases]]),
        np.concatenate([rows.elements[gathers], [-f.elements for f in releases]]),
    )
    item_bytes = int(rows.nbytes[gathers].sum()) / elements
    return {step: Gathered(held, round(held * item_bytes)) for step, held in most.items()}


def reducing_by_step(trace: RankTrace, steps: Array) -> dict[int, int]:
    """Return the most bytes of gradient buckets that were in flight at once in each of `steps`."""
    rows = trace.collectives
    flushed = np.flatnonzero((rows.flush > 0) & rows.on_wire & in_steps(rows.step, steps))
    done_ns = completed(rows)[flushed]
    return _highest_by_step(
        np.tile(rows.step[flushed], 2),
        np.concatenate([rows.issue_ns[flushed], done_ns]),
        np.concatenate([rows.nbytes[flushed], -rows.nbytes[flushed]]),
    )


def _highest_by_step(step: Array, time_ns: Array, change: Array) -> dict[int, int]:
    """Return the highest level in each step, which begins at nothing and never falls below."""
    if not len(step):
        return {}
    order = np.lexsort((change, time_ns, step))
    numbers, starts = np.unique(step[order], return_index=True)
    parts = np.split(change[order].astype(np.int64), starts[1:])
    return dict(zip(numbers.tolist(), map(_highest, parts), strict=True))


def _highest(changes: Array) -> int:
    """Return the highest level, which never falls below nothing."""
    level = np.cumsum(changes)
    return int((level - np.minimum(np.minimum.accumulate(level), 0)).max())
