"""Why ranks wait for communication: for one that arrives later, or for the transfer itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.lateness import lateness
from dsprof.analysis.summary import RunSummary

_COVERED = 0.5  # of the exposed time, that matched collectives must explain


@dataclass(frozen=True, slots=True)
class Attribution:
    """Shares of the measured steps; together they are the exposed share.

    Every rule that explains exposed time reads it, so that no millisecond has two causes.
    """

    waiting: float  # for a rank that arrives later
    transfer: float  # after the last arrival
    latest: int | None  # the rank that causes two thirds of the waits, if one does
    caused: Mapping[int, float]  # of the waits, by each rank

    def is_for(self, ranks: Iterable[int]) -> bool:
        """Whether these ranks together cause two thirds of the waits."""
        return 3 * sum(self.caused.get(rank, 0.0) for rank in ranks) > 2


def attribution(run: RunSummary) -> Attribution | None:
    """Split the exposed time as that of the matched collectives; None where that is not known.

    A missing rank may be the late one. Of communication that runs behind computation both parts
    are taken to be hidden alike.
    """
    steps = run[Steps]
    share = steps.exposed_share
    if share is None or not steps.measured or run[Run].missing_ranks:
        return None
    late = lateness(run[Arrivals].matched, steps.measured)
    waited_ns, transfer_ns = int(late.waited_in_all_ns.sum()), int(late.transfer_ns.sum())
    held_ns = waited_ns + transfer_ns
    exposed_ns = share * sum(steps.measured_ns.values())
    if not held_ns or held_ns < _COVERED * exposed_ns:
        return None
    waiting = share * waited_ns / held_ns
    total_ns = max(int(late.caused_ns.sum()), 1)
    caused = {
        rank: float(ns) / total_ns for rank, ns in zip(late.ranks, late.caused_ns, strict=True)
    }
    return Attribution(waiting, share - waiting, late.waited_for, caused)
