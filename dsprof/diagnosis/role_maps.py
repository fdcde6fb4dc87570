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
from dsprof.diagnosis.model import StepMap, StepMark
from dsprof.diagnosis.step_map import COLUMNS, ROWS, Layout, Times, blocks_of, mean_of, step_layout

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
    for at, rank in enumerate(laid.ranks):
        if rank in places:
            members[places[rank]].append(at)
    order = sorted(members)
    rows, columns = (
        [np.array(members[place]) for place in order],
        blocks_of(len(laid.steps), COLUMNS),
    )
    cells = Times(*(mean_of(mean_of(one, columns).T, rows).T for one in laid.times))
    return StepMap(
        ranks=[(laid.ranks[row[0]], laid.ranks[row[-1]]) for row in rows],
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
