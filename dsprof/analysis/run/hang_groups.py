"""Where each process group of a hang is."""

from __future__ import annotations

from collections.abc import Iterator

from dsprof.analysis.run.endings import Hang
from dsprof.analysis.run.hang_model import GroupWaits
from dsprof.analysis.run.hang_telling import first_call


def groups_of(hang: Hang) -> Iterator[GroupWaits]:
    """Yield the first call of each group that cannot end, those first that lack ranks."""
    for found in hang.mismatched:
        first = first_call(found.calls)
        yield GroupWaits(
            group=found.label,
            name=found.name,
            ranks=tuple(sorted(found.calls)),
            op=first.op if first else "",
            number=found.seq,
            bytes=first.nbytes if first else None,
            waited_ns=max((c.in_flight_ns for c in found.calls.values()), default=0) or None,
            waiting=tuple(sorted(set(found.calls) - {*found.odd})),
            different=found.odd,
            called_from=first.frame if first else "",
        )
    for state in sorted(hang.held_up, key=lambda state: not (state.absent or state.unfinished)):
        call = state.call
        yield GroupWaits(
            group=state.label,
            name=state.name,
            ranks=state.members,
            op=call.op if call else "",
            number=state.seq if call else None,
            bytes=call.nbytes if call else None,
            waited_ns=state.waited_ns or None,
            waiting=state.waiting,
            absent=state.absent,
            unfinished=state.unfinished,
            unknown=state.unknown,
            called_from=call.frame if call else "",
        )
