"""The fate of a rank that did not come: by what was seen of it, or by how its record ends."""

from __future__ import annotations

import math
from typing import NamedTuple

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.ending import Ending, Symptoms
from dsprof.analysis.hang import words
from dsprof.analysis.hang.causes import STOPPED, in_own_code
from dsprof.analysis.hang.flight_recorders import GroupState
from dsprof.analysis.hang.model import Cause, CauseKind, Kind
from dsprof.analysis.hang.waits import (
    LEAST_WAIT_NS,
    LOST_NS,
    is_known,
    pair_state,
    was_alive_meanwhile,
)
from dsprof.environment.processes import GONE
from dsprof.findings.frames import frame_of_user
from dsprof.findings.wording import duration, named, plural
from dsprof.trace.collectives import is_rooted
from dsprof.trace.schema import EXIT, Trailer
from dsprof.trace.writing.heartbeat import FIRST_NS, LONGEST_NS

_MEMORY = frozenset({"MemoryError", "OutOfMemoryError"})
_STORE = frozenset({"DistStoreError", "DistNetworkError"})
_TCP = frozenset({"gloo"})
"""Backends that notice at once when the process at the other side has gone."""


class Fate(NamedTuple):
    """The fate of a rank that did not come."""

    kind: Kind
    cause: Cause
    is_proven: bool


def fate_of(rank: int, endings: Endings, state: GroupState) -> Fate:
    """Say what became of a rank that did not come to a call."""
    if (ending := endings.ranks.get(rank)) is None:
        text = "A rank that never arrives hung, crashed, or took a different branch."
        return Fate("never_entered", Cause("unknown", text), True)
    if ending.left_ns is not None:
        return Fate("never_entered", _left(rank, ending.left_ns - state.since_ns), True)
    seen = by_look(rank, endings, state)
    if seen is None or seen.kind == "never_entered" or ending.has_lost_others:
        seen = _still_inside(rank, ending, state) or seen
    if ending.symptoms.is_alive and (seen is None or seen.kind == "never_entered"):
        # A process that is alive and writes nothing runs no Python.
        if ending.trailer is None and _is_silent(ending, state):
            return Fate("frozen", no_python(rank, ending.symptoms), True)
        if _goes_on(ending, state):
            text = f"Rank {rank} is alive, and still communicates in other groups: it may come."
            return Fate("slow", Cause("unknown", text), False)
    return seen or _by_record(rank, endings, state)


def _left(rank: int, later_ns: int) -> Cause:
    """Tell a rank that had left its group from one for which others already waited then."""
    if later_ns < LOST_NS:
        text = "had already destroyed its process group: it ran fewer iterations than the others."
        return Cause("exited", f"Rank {rank} {text}")
    return Cause(
        "unknown",
        f"Rank {rank} was in its own code, and destroyed its process group {duration(later_ns)} "
        "after the first rank entered. Programs and frameworks do that after they caught an error.",
    )


def by_look(rank: int, endings: Endings, state: GroupState) -> Fate | None:
    """Judge by what somebody saw of the process, or what its own last line says."""
    ending = endings.ranks[rank]
    symptoms, trailer = ending.symptoms.since(state.since_ns), ending.trailer
    if trailer is not None and trailer.exception:
        return Fate("died", by_exception(rank, endings, trailer), True)
    if ending.breaks_off and (symptoms.state == GONE or endings.killed_for_memory(rank)):
        return Fate("died", by_kill(rank, endings), True)
    if symptoms.state in STOPPED:
        text = f"Rank {rank} is stopped (SIGSTOP, or a debugger)."
        return Fate("frozen", Cause("stopped", text), True)
    if symptoms.holds_interpreter:
        return Fate("frozen", no_python(rank, symptoms), True)
    if found := in_own_code(symptoms):
        kind, text = found
        return Fate("never_entered", Cause(kind, f"Rank {rank} {text}."), True)
    return None


def _still_inside(rank: int, ending: Ending, state: GroupState) -> Fate | None:
    """Say whether a rank waits in an earlier collective of the group, which others have left."""
    view = ending.groups.get(state.name)
    if view is None or ending.is_on_device or state.is_pair:
        return None
    earlier = [number for number in view.in_flight if number < state.seq]
    if not earlier:
        return None
    call = view.calls[min(earlier)]
    has_root = is_rooted(call.op)
    sources = ": the ranks may name different sources" if has_root else ""
    at = f", called at {call.frame}" if call.frame else ""
    text = (
        f"Rank {rank} is still in {call.op} {min(earlier)} of {state.label}{at}, which "
        f"{named(state.waiting)} left{sources}."
    )
    return Fate("never_entered", Cause("diverged" if has_root else "unknown", text), False)


def _by_record(rank: int, endings: Endings, state: GroupState) -> Fate:
    """Judge by when the record of a rank ends, beside the waits of the others."""
    ending, since_ns = endings.ranks[rank], state.since_ns
    is_alive, is_silent = was_alive_meanwhile(ending, state), _is_silent(ending, state)
    if ending.trailer is None:
        is_sure, notices = is_known(ending, state), ending.backend in _TCP
        was_cut = ending.has_state and ending.alive_ns < state.since_ns + state.waited_ns
        lost = _first_lost(endings, state)
        if lost == "connection" and notices and _outlived(ending, endings, state):
            left = _in_own_code(rank, endings, since_ns)
            text = (
                "The others lost the connection to it while it lived: it had left the process "
                f"group, or the network broke. {left.text}"
            )
            return Fate("never_entered", Cause(left.kind, text), True)
        if lost == "connection" and notices:
            cause, stopped = by_kill(rank, endings), stopped_before(rank, endings, state)
            if cause.kind == "unknown" and stopped:
                said = f"The record of rank {rank} breaks off earlier."
                cause = Cause("unknown", said + stopped)
            return Fate("died", cause, is_sure)
        # Who lived until the others gave up is killed for their failure.
        is_first = was_cut and lost != "timeout"
        if state.failed and (is_first or not is_alive) and not (is_silent and notices):
            return Fate("died", by_kill(rank, endings), is_sure)
        if is_silent and notices:
            is_sure = lost == "timeout" or not state.failed
            return Fate("frozen", Cause("unknown", _frozen(rank)), is_sure)
        if is_silent:
            return Fate("died", by_kill(rank, endings), is_sure)
        if not is_alive:
            return Fate("never_entered", by_kill(rank, endings), is_sure)
    elif ending.trailer.reason == EXIT and (is_silent or ending.alive_ns < since_ns + LOST_NS):
        text = (
            f"Rank {rank} had already exited without an exception: it ran fewer iterations than "
            "the others, or called sys.exit."
        )
        return Fate("never_entered", Cause("exited", text), True)
    return Fate("never_entered", _in_own_code(rank, endings, since_ns), True)


def stopped_before(rank: int, endings: Endings, state: GroupState) -> str:
    """Say that a killed rank was silent while its connections were open; "" if that is unknown."""
    ending, lost = endings.ranks[rank], _first_lost(endings, state)
    if ending.backend not in _TCP or lost != "connection" or not _is_silent(ending, state):
        return ""
    silent_ns = state.since_ns + state.waited_ns - ending.alive_ns
    return (
        f" It wrote nothing for {duration(silent_ns)} while its connections stayed open: before it "
        "ended, it was stopped (SIGSTOP, or a debugger), or ran no Python."
    )


def _first_lost(endings: Endings, state: GroupState) -> str:
    """Return how the wait failed that failed first: whoever exits then ends those of others."""
    first = _first_failed(endings, state)
    return first.lost if first is not None else ""


def _first_failed(endings: Endings, state: GroupState) -> Ending | None:
    failed = [endings.ranks[rank] for rank in state.failed if rank in endings.ranks]
    return min(failed, key=lambda ending: ending.failed_ns or math.inf, default=None)


def _outlived(ending: Ending, endings: Endings, state: GroupState) -> bool:
    """Say whether a rank still lived when others had lost the connection to it."""
    first = _first_failed(endings, state)
    failed_ns = first.failed_ns if first is not None else None
    return failed_ns is not None and ending.alive_ns > failed_ns + LEAST_WAIT_NS


def _is_silent(ending: Ending, state: GroupState) -> bool:
    """Say whether a rank ought to have written a heartbeat while others waited."""
    return state.since_ns + state.waited_ns > latest_ns(ending)


def latest_ns(ending: Ending) -> int:
    """Return until when a process may have lived that wrote nothing after its last sign of life."""
    longest_ns = LONGEST_NS if ending.heartbeat and not ending.has_state else FIRST_NS
    return ending.alive_ns + longest_ns + 2 * LOST_NS


def _goes_on(ending: Ending, state: GroupState) -> bool:
    """Say whether a living rank completed other collectives lately, while others waited."""
    calls = (call for view in ending.groups.values() for call in view.calls.values())
    done_ns = max((call.until_ns for call in calls if not call.is_in_flight), default=0)
    return done_ns > max(state.since_ns + LOST_NS, ending.alive_ns - 2 * LEAST_WAIT_NS)


def _has_vanished(ending: Ending) -> bool:
    """Say whether a record breaks off, and the process was not seen alive at that moment."""
    look = ending.symptoms
    is_seen = look.state not in ("", GONE) and (look.at_ns is None or look.at_ns >= ending.alive_ns)
    return ending.trailer is None and not is_seen


def no_python(rank: int, symptoms: Symptoms) -> Cause:
    """Say in which call a rank keeps the interpreter lock."""
    where = f" at {frame_of_user(symptoms.stack)}" if symptoms.stack else ""
    text = f"Rank {rank} is in a call{where} that does not release the interpreter lock."
    return Cause("interpreter_lock", text)


_LOST = {
    "connection": " It had lost the connection to another rank.",
    "timeout": " A call had timed out.",
}


def by_exception(rank: int, endings: Endings, trailer: Trailer) -> Cause:
    """Name the exception that ended a rank, and say where another process may be its cause."""
    ending = endings.ranks[rank]
    name = trailer.exception.rpartition(".")[2]
    kind: CauseKind = (
        "out_of_memory" if name in _MEMORY else "store" if name in _STORE else "exception"
    )
    where = f" at {trailer.raised_at}" if trailer.raised_at else ""
    if kind == "store" and ending.lost == "timeout":
        text = f"Rank {rank} waited for the store{where}, until a timeout ended it"
        return Cause(kind, f"{text}: no rank set the key, or the store does not answer.")
    if kind == "store" and ending.lost == "connection":
        text = f"Rank {rank} lost the connection to the store{where}"
        return Cause(kind, f"{text}: the process that hosts it ended, or the network broke.")
    other = _LOST.get(ending.lost) or killed_beside(rank, endings)
    return Cause(kind, f"Rank {rank} ended by {trailer.exception}{where}.{other}")


def killed_beside(rank: int, endings: Endings) -> str:
    """Say that the kernel killed processes that are no ranks, such as workers of a DataLoader."""
    if not (count := endings.helpers_killed(rank)):
        return ""
    what = plural(count, "other process", "other processes")
    return f" The kernel killed {what} of its cgroup: the memory limit was reached."


def by_kill(rank: int, endings: Endings) -> Cause:
    """Say what is known of a process whose record breaks off."""
    ending = endings.ranks[rank]
    if ending.symptoms.oom_kills or endings.killed_for_memory(rank):
        text = f"The kernel killed rank {rank}: the memory limit of its cgroup was reached."
        return Cause("out_of_memory", text)
    sizes = " gloo also ends a process whose call has another size than those of its peers."
    return Cause(
        "unknown",
        f"The record of rank {rank} breaks off earlier: the process was killed, crashed, "
        f"was stopped, or called os._exit().{sizes * (ending.backend in _TCP)}",
    )


def _frozen(rank: int) -> str:
    return (
        f"Rank {rank} writes no heartbeat, and its connections stayed open: it is stopped "
        "(SIGSTOP), or a call does not release the interpreter lock."
    )


def may_wait_in(rank: int, endings: Endings) -> str:
    """Say in which send or receive a killed rank may have waited; "": in none."""
    if (last := endings.ranks[rank].last_pair) is None:
        return ""
    state = pair_state(rank, last, endings)
    return (
        f"Rank {rank} called {words.call(state)} last, which {named(state.absent)} did not "
        "answer: it is unknown whether it waited for that."
        if state.absent
        else ""
    )


def _in_own_code(rank: int, endings: Endings, since_ns: int) -> Cause:
    ending, may_wait = endings.ranks[rank], may_wait_in(rank, endings)
    later_ns = ending.alive_ns - since_ns
    beat = ending.heartbeat
    idle = ", with no collective in flight" if beat and not beat.in_flight else ""
    calls = (call for view in ending.groups.values() for call in view.calls.values())
    later = [call for call in calls if call.created_ns > since_ns]
    after = min(later, key=lambda call: call.created_ns, default=None)
    at = f" at {after.frame}" if after and after.frame else ""
    went_on = f" Its next call was {after.op}{at}." if after else ""
    where = ": it was in its own code, or in a branch that the others do not take."
    text = (
        f"Rank {rank} was still alive {duration(max(later_ns, 0))} after the first rank entered"
        f"{idle}{f'. {may_wait}' if may_wait else where}{went_on}"
        + " Its record breaks off: killed, crashed, or still running."
        * _has_vanished(ending)
    )
    return Cause("diverged" if after else "unknown", text)
