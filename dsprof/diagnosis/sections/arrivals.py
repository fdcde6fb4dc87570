"""Last arrivals to collectives, for the report."""

from __future__ import annotations

import numpy as np

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.lateness import Lateness, lateness
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis import model

_RANKS = 64
_STEPS = 500


def arrivals(summary: RunSummary) -> model.ArrivalInfo:
    """List the ranks for whom others waited most, up to 64, and the last rank of up to 500 steps.

    Without steps the record is taken whole, and counts as one.
    """
    matched, measured = summary[Arrivals].matched, summary[Steps].measured
    late = lateness(matched, measured or None)
    count = max(len(measured), 1)
    order = np.argsort(-late.caused_ns.sum(axis=1), kind="stable")
    return model.ArrivalInfo(
        rows=[_row(late, i, count) for i in order[:_RANKS].tolist()],
        last_ranks=_last_ranks(lateness(matched)),
        left_out_ranks=max(len(late.ranks) - _RANKS, 0),
        one_in=late.stride,
        by_ends=any(one.by_ends for one in matched),
        doubt_ns=late.doubt_ns,
    )


def _row(late: Lateness, place: int, steps: int) -> model.ArrivalRow:
    return model.ArrivalRow(
        rank=late.ranks[place],
        last=int(late.lasts[place]),
        collectives=int(late.met[place]),
        caused_ns=int(late.caused_ns[place].sum()) // steps,
        waited_ns=int(late.waited_ns[place].clip(0).sum()) // steps,
        transfer_ns=int(late.transfer_ns[place].sum()) // steps,
    )


def _last_ranks(late: Lateness) -> dict[str, int]:
    """Return the rank that made others wait longest, step by step."""
    found = {}
    for column in np.flatnonzero(late.steps >= 0)[-_STEPS:].tolist():
        place = int(np.argmax(late.caused_ns[:, column]))
        if late.caused_ns[place, column] > 0:
            found[str(int(late.steps[column]))] = late.ranks[place]
    return found
