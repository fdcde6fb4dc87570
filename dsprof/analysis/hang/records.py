"""Verdicts on groups of which records are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsprof.analysis.hang import words
from dsprof.analysis.hang.flight_recorders import GroupState
from dsprof.analysis.hang.model import Cause, HangVerdict
from dsprof.analysis.hang.telling import Telling
from dsprof.analysis.hang.waits import Hang, cycles, roots
from dsprof.findings.wording import capitalised, named


def without_record(tell: Telling) -> Iterator[HangVerdict]:
    """Ranks without a usable record, where all others of a group have entered and wait."""
    suspect = [
        state
        for state in tell.hang.stuck_groups
        if state.unknown and not state.absent and _is_minority(state)
    ]
    if not suspect or roots(tell.hang) or tell.hang.unfinished:
        return
    ranks = tuple(sorted({rank for state in suspect for rank in state.unknown}))
    missing = [rank for rank in ranks if rank not in tell.endings.ranks]
    who = named(missing or ranks)
    told = f"{capitalised(who)} stopped recording before the run ended"
    if missing:
        is_of_dumps = tell.hang.is_of_dumps
        told = f"{capitalised(who)} wrote no dump" if is_of_dumps else f"No trace of {who} was read"
    first = suspect[0]
    yield _told_in_the_run(tell, first, f"{told}.") or tell.of_state(
        first,
        kind="unknown",
        ranks=ranks,
        cause=Cause("unknown", _no_record(missing, of_dumps=tell.hang.is_of_dumps)),
        confidence="low",
        sentence=f"{told}, and all other ranks were in {words.call(first)}; {words.waited(first)}.",
    )


def with_few_records(tell: Telling) -> Iterator[HangVerdict]:
    """Ranks that wait in a group of which most records are missing."""
    states = [state for state in tell.hang.stuck_groups if state.unknown and not state.absent]
    if not states or tell.hang.is_of_dumps or _names_somebody(tell.hang):
        return
    first = states[0]
    missing = f"{len(first.unknown)} of {len(first.members)} traces are missing"
    yield _told_in_the_run(tell, first, f"{missing}.") or tell.of_state(
        first,
        kind="unknown",
        ranks=(),
        cause=Cause("unknown", words.COPY_ALL),
        confidence="low",
        sentence=f"{missing}, so it is unknown who is absent from {words.call(first)}; "
        f"{words.waited(first)}.",
    )


def _told_in_the_run(tell: Telling, state: GroupState, missing: str) -> HangVerdict | None:
    """Return what the watchdog said: it could ask ranks whose files are missing now."""
    endings = tell.endings.ranks
    told = [end.told for rank in state.waiting if (end := endings.get(rank)) and end.told]
    if not told:
        return None
    return tell.of_state(
        state,
        kind="unknown",
        ranks=told[0].ranks,
        cause=Cause("unknown", f"The watchdog said so in the run. {missing}"),
        confidence="medium",
        sentence=told[0].text,
    )


def _names_somebody(hang: Hang) -> bool:
    """Say whether another verdict tells who keeps others waiting."""
    few = (s for s in hang.stuck_groups if s.unknown and not s.absent and _is_minority(s))
    return bool(hang.mismatched or hang.unfinished or roots(hang) or cycles(hang) or any(few))


def _is_minority(state: GroupState) -> bool:
    return 2 * len(state.unknown) <= len(state.members)


def _no_record(missing: Sequence[int], *, of_dumps: bool) -> str:
    if of_dumps:
        return "A process that died, or whose watchdog hung, writes no dump."
    if missing:
        return (
            "A rank records from its first collective on: it has not come to one, died before, or "
            "its file was not given."
        )
    return "The end of the run is not in its file."
