"""How much of a model's gathered parameters was there at once, by all-gathers and releases.

Each step is counted from nothing: between steps ZeRO-3 and FSDP hold no more than what they always
keep. So the padding that all-gathers have and releases have not adds up over one step at most.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dsprof.analysis.rank.intervals import Array
from dsprof.analysis.rank.steps import in_steps
from dsprof.trace.table import RankTrace


class Gathered(NamedTuple):
    """Parameters that were there at once."""

    elements: int = 0
    nbytes: int = 0


def most_gathered(trace: RankTrace, steps: Array) -> Gathered:
    """Return the most parameters that were there at once in `steps` (ascending)."""
    rows = trace.collectives
    gathers = np.flatnonzero((rows.fetch > 0) & rows.on_wire & in_steps(rows.step, steps))
    elements = int(rows.elements[gathers].sum())
    if not elements:
        return Gathered()
    wanted = set(steps.tolist())
    releases = [f for f in trace.fetches if f.kind == "release" and f.step in wanted]
    step = np.concatenate([rows.step[gathers], [f.step for f in releases]])
    time_ns = np.concatenate([rows.issue_ns[gathers], [f.end_ns for f in releases]])
    change = np.concatenate([rows.elements[gathers], [-f.elements for f in releases]])
    order = np.lexsort((time_ns, step))
    cuts = np.flatnonzero(np.diff(step[order])) + 1
    most = max(map(_highest, np.split(change[order].astype(np.int64), cuts)))
    item_bytes = int(rows.nbytes[gathers].sum()) / elements
    return Gathered(most, round(most * item_bytes))


def _highest(changes: Array) -> int:
    """Return the highest level, which never falls below nothing."""
    level = np.cumsum(changes)
    return int((level - np.minimum(np.minimum.accumulate(level), 0)).max())
