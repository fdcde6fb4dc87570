"""Steps of large runs by pipeline stage and by tensor rank: imbalance that hosts hide."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from dsprof.analysis.aggregates.placement import Placement
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.history_map import history_layout
from dsprof.diagnosis.parts.steps import StepMap, StepMark
from dsprof.diagnosis.step_map import (
    COLUMNS,
    NO_DATA,
    ROWS,
    Layout,
    Times,
    blocks_of,
    mean_of,
    step_layout,
)

_ROLES = {"pipeline": "pipeline stage", "tensor": "tensor rank"}


def role_maps(summary: RunSummary, marks: Sequence[StepMark]) -> list[StepMap]:
    """Lay out more than 64 ranks by their places in groups, a row the mean of its ranks.

    `marks` are those of the map of ranks, which has the same columns.
    """
    laid = history_layout(summary) or step_layout(summary[Steps])
    if laid is None or len(laid.ranks) <= ROWS:
        return []
    places = {role: _places(summary[Placement], role) for role in _ROLES}
    return [
        _mapped(laid, name, places[role], marks)
        for role, name in _ROLES.items()
        if len(set(places[role].values())) > 1
    ]


def _places(found: Placement, role: str) -> dict[int, int]:
    groups = (one.ranks for one in found.groups.values() if one.role == role)
    return {rank: place for ranks in groups for place, rank in enumerate(ranks) if place < ROWS}


def _mapped(
    laid: Layout, name: str, places: Mapping[int, int], marks: Sequence[StepMark]
) -> StepMap:
    members: defaultdict[int, list[int]] = defaultdict(list)
    for rank in laid.ranks:
        if rank in places:
            members[places[rank]].append(rank)
    order, columns = sorted(members), blocks_of(len(laid.steps), COLUMNS)
    rows = [members[place] for place in order]
    cells = _means(laid, rows, columns)
    return StepMap(
        ranks=[(row[0], row[-1]) for row in rows],
        row_names=[f"{name} {place}" for place in order],
        steps=laid.blocks(columns),
        total_ns=cells.total.tolist(),
        exposed_ns=cells.exposed.tolist(),
        compute_ns=cells.compute.tolist(),
        marks=[
            msgspec.structs.replace(mark, row=order.index(places[mark.rank]))
            for mark in marks
            if mark.rank is not None and mark.rank in places
        ],
    )


def _means(laid: Layout, rows: Sequence[Sequence[int]], columns: Sequence[slice]) -> Times:
    """Return the mean over the ranks of each row, in one pass over all of them."""
    row_of = {rank: row for row, ranks in enumerate(rows) for rank in ranks}
    shape = len(rows), len(columns)
    sums, counts = (Times(*(np.zeros(shape, np.int64) for _ in Times._fields)) for _ in range(2))
    every = sorted(row_of)
    for ranks in (every[at : at + ROWS] for at in range(0, len(every), ROWS)):
        place = [row_of[rank] for rank in ranks]
        for total, count, cells in zip(sums, counts, laid.times(ranks), strict=True):
            means = mean_of(cells, columns)
            np.add.at(total, place, np.maximum(means, 0))
            np.add.at(count, place, means >= 0)
    pairs = zip(sums, counts, strict=True)
    return Times(*(np.where(n > 0, total // np.maximum(n, 1), NO_DATA) for total, n in pairs))
