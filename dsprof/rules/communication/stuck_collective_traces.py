"""stuck-collective, from traces: what ranks waited for when the run was killed or gave up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dsprof.analysis.aggregates.endings import Ending, Endings
from dsprof.analysis.run.endings import Hang, deadlocked, find_hang, roots, was_alive_meanwhile
from dsprof.analysis.run.flight_recorders import GroupState
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.wording import duration, named, ranks_do, size
from dsprof.rules.communication.stuck_collective_tables import held_up_groups
from dsprof.rules.endings import called, last_completed
from dsprof.rules.knowledge.stage3 import LEAF_MODULES
from dsprof.rules.rule import RuleMeta
from dsprof.trace.schema import EXIT

_NAMED = 3
"""Of so many ranks the sentence says why they did not come; the table has all."""


def findings_of_traces(meta: RuleMeta, endings: Endings, least_wait_ns: int) -> Iterator[Finding]:
    """Name who did not come; where nothing proves it, say that the end is unknown."""
    hang = find_hang(endings, least_wait_ns)
    found = [
        *_never_entered(meta, endings, hang),
        *_deadlocked(meta, endings, hang),
        *_without_trace(meta, endings, hang),
        *_entered_by_all(meta, endings, hang),
    ]
    yield from found
    if hang.mismatched and not found:
        yield meta.finding(Status.NOT_APPLICABLE, "Covered by mismatched-collective.")
    killed = [rank for rank, ending in sorted(endings.ranks.items()) if ending.trailer is None]
    if killed and not (found or hang.mismatched):
        yield meta.finding(
            Status.UNKNOWN,
            f"Unknown: {named(killed)} ended without a trailer, and no rank is known to "
            f"have waited {duration(least_wait_ns)} or longer.",
            evidence=(last_completed(endings.ranks),),
        )


def _never_entered(meta: RuleMeta, endings: Endings, hang: Hang) -> Iterator[Finding]:
    if not (ranks := roots(hang)):
        return
    states = [state for state in hang.held_up if set(ranks) & set(state.absent)]
    first = min(states, key=lambda state: (not set(state.absent) <= set(ranks), _since_ns(state)))
    absent = [rank for rank in first.absent if rank in ranks]
    is_proven = all(was_alive_meanwhile(endings.ranks[r], first) for r in absent)
    # What a killed rank did in its last half second was not written.
    missed = "never entered" if is_proven else "stopped in or before"
    yield meta.finding(
        Status.FAIL,
        f"{named(absent).capitalize()} {missed} {_missed(first)}; {_waited(first)}.",
        severity=Severity.CRITICAL,
        cause=" ".join(_why(rank, endings.ranks[rank], first) for rank in absent[:_NAMED])
        + _zero3(first),
        action=_look_at(ranks, endings) + _leaf(first),
        ranks=ranks,
        evidence=(held_up_groups(hang.held_up), last_completed(endings.ranks, _shown(ranks, hang))),
        confidence="high" if is_proven and not first.unknown else "medium",
    )


def _deadlocked(meta: RuleMeta, endings: Endings, hang: Hang) -> Iterator[Finding]:
    if not (ranks := deadlocked(hang)):
        return
    states = [s for s in hang.held_up if set(s.waiting) & set(ranks) and set(s.absent) & set(ranks)]
    links = ". ".join(
        f"{ranks_do([r for r in s.waiting if r in ranks], 'wait')} in {_call(s)} for "
        f"{named([r for r in s.absent if r in ranks])}"
        for s in states[:4]
    )
    yield meta.finding(
        Status.FAIL,
        f"{named(ranks).capitalize()} are deadlocked. {links}.",
        title="Ranks are deadlocked",
        severity=Severity.CRITICAL,
        cause="Each of these ranks waits for another of them: they call collectives of several "
        "groups, or sends and receives, in different orders.",
        action="Call them in the same order on every rank; batch sends and receives of two ranks "
        "with torch.distributed.batch_isend_irecv.",
        ranks=ranks,
        evidence=(held_up_groups(states), last_completed(endings.ranks, ranks)),
        confidence="high",
    )


def _without_trace(meta: RuleMeta, endings: Endings, hang: Hang) -> Iterator[Finding]:
    """Ranks without a usable record, where all others of a group have entered and wait."""
    suspect = [s for s in hang.held_up if not s.absent and 0 < 2 * len(s.unknown) <= len(s.members)]
    if not suspect or roots(hang):
        return
    ranks = tuple(sorted({rank for state in suspect for rank in state.unknown}))
    missing = [rank for rank in ranks if rank not in endings.ranks]
    lost = "wrote no trace" if missing else "stopped recording before the run ended"
    yield meta.finding(
        Status.FAIL,
        f"{named(missing or ranks).capitalize()} {lost}, and all other ranks of "
        f"{_group(suspect[0])} were in {_call(suspect[0])}; {_waited(suspect[0])}.",
        title="The others may wait for ranks without a record",
        severity=Severity.CRITICAL,
        cause="The process died before it recorded anything, or its file is on another host."
        if missing
        else "The end of the run is not in its file.",
        action=f"Look at the log of {named(ranks)}. If a trace exists, add it to the report.",
        ranks=ranks,
        evidence=(held_up_groups(suspect), last_completed(endings.ranks)),
        confidence="low",
    )


def _entered_by_all(meta: RuleMeta, endings: Endings, hang: Hang) -> Iterator[Finding]:
    joined = [s for s in hang.held_up if not (s.absent or s.unknown)]
    if not joined or roots(hang) or deadlocked(hang):
        return
    first = joined[0]
    killed = [r for r in first.members if r in endings.ranks and not endings.ranks[r].trailer]
    died = killed if first.failed else []
    yield meta.finding(
        Status.FAIL,
        f"Every rank entered {_call(first)}, but it did not complete; {_waited(first)}.",
        title="A collective that every rank entered did not complete",
        severity=Severity.CRITICAL,
        cause=f"The record of {named(died)} ends in it without a trailer: killed or crashed."
        if died
        else "A rank was stopped, its network connection broke, the timeout was too short, or the "
        "transfer was still running when the run ended.",
        action=f"{_look_at(died or first.waiting, endings)} Check the network between the ranks.",
        ranks=tuple(died),
        evidence=(held_up_groups(joined), last_completed(endings.ranks, first.members)),
        confidence="medium" if died else "low",
    )


def _why(rank: int, ending: Ending, state: GroupState) -> str:
    since_ns = _since_ns(state)
    if ending.trailer is None and not was_alive_meanwhile(ending, state):
        return (
            f"The record of rank {rank} ends earlier, without a trailer: the process was killed, "
            "crashed or stopped. Up to its last half second is missing."
        )
    if ending.trailer is not None and ending.trailer.exception:
        return f"Rank {rank} ended by {ending.trailer.exception}."
    later_ns = ending.alive_ns - since_ns
    if ending.trailer is not None and ending.trailer.reason == EXIT and later_ns <= 0:
        return f"Rank {rank} had already exited normally: it runs fewer iterations than the others."
    beat = ending.heartbeat
    idle = ", with no collective in flight" if beat and not beat.in_flight else ""
    return (
        f"Rank {rank} was still alive {duration(max(later_ns, 0))} after the first rank entered"
        f"{idle}: it was in its own code, or in a branch that the others do not take."
        + (" Its record ends without a trailer: it was killed or crashed." * (not ending.trailer))
    )


def _since_ns(state: GroupState) -> int:
    """Return when the first rank entered."""
    return state.call.created_ns if state.call else 0


def _missed(state: GroupState) -> str:
    """Name what ranks never entered; of a send, that is the receive, and the other way round."""
    if state.p2p_in_flight and state.call:
        return f"the {'recv' if state.call.op == 'send' else 'send'} that {_call(state)} needs"
    return _call(state)


def _call(state: GroupState) -> str:
    call = state.call
    if call is None:
        return f"collective {state.seq:,} of {_group(state)}"
    details = [] if not call.nbytes else [size(call.nbytes)]
    details += [f"step {call.step}"] if call.step >= 0 else []
    within = f" ({', '.join(details)})" if details else ""
    return f"{call.op} {state.seq:,} of {_group(state)}{within}"


def _group(state: GroupState) -> str:
    """Name a group; one without a name of its own has a label like `group 3`."""
    return state.label if state.label.startswith("group ") else f"group {state.label}"


def _waited(state: GroupState) -> str:
    text = f"{named(state.waiting)} waited {duration(state.waited_ns)} in it"
    if not state.failed:
        return text
    who = "" if state.failed == state.waiting else f" on {named(state.failed)}"
    return f"{text}, until an exception{who}"


def _look_at(ranks: Sequence[int], endings: Endings) -> str:
    rank = ranks[0]
    ending = endings.ranks[rank]
    after = f" after {called(ending.last)}" if ending.last else ""
    at = f", called at {ending.last_frame}" if ending.last_frame else ""
    log = f"Look at the end of the log of {named(ranks)}"
    if ending.trailer is not None and ending.trailer.exception:
        return f"{log} for the traceback; its last collective was {called(ending.last)}{at}."
    return (
        f"Look at what rank {rank} does{after}{at}. If it hangs again, print its stack with "
        f"`py-spy dump --pid PID`. {log}."
    )


def _shown(ranks: Iterable[int], hang: Hang) -> list[int]:
    """Return the ranks to show: those to blame first, then all that waited."""
    waiting = {rank for state in hang.held_up for rank in (*state.waiting, *state.absent)}
    return [*ranks, *sorted(waiting.difference(ranks))]


def _zero3(state: GroupState) -> str:
    if state.call is None or not state.call.is_of_zero3:
        return ""
    return " ZeRO-3 called it: it hangs where a rank does not run a module that others run."


def _leaf(state: GroupState) -> str:
    return f" {LEAF_MODULES}" if state.call and state.call.is_of_zero3 else ""
