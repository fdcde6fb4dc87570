"""How a run ended in which no rank is known to wait."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.ending import Ending, first_failed
from dsprof.analysis.hang import words
from dsprof.analysis.hang.causes import STOPPED, in_own_code
from dsprof.analysis.hang.fates import (
    by_exception,
    by_kill,
    latest_ns,
    may_wait_in,
    no_python,
)
from dsprof.analysis.hang.flight_recorders import GroupState
from dsprof.analysis.hang.model import Cause, HangVerdict
from dsprof.analysis.hang.telling import Telling
from dsprof.analysis.hang.waits import LEAST_WAIT_NS, Hang
from dsprof.environment.processes import GONE
from dsprof.findings.wording import (
    broken_off,
    capitalised,
    duration,
    named,
    plural,
    ranks_do,
)
from dsprof.trace.schema import EXIT, INTERRUPTED, is_of_environment
from dsprof.trace.writing.heartbeat import LONGEST_NS

_LATE_NS = 2 * LONGEST_NS

_NAMED = 4
_HEALTHY_OR_STUCK = "The run was healthy at that moment, or the network or a device is stuck."
_KEPT = "If a process is to end, an exit handler, a destructor or a thread keeps it from ending."
_ALONE = "no rank is known to have waited for another one"

_MAY_RUN = (
    "A killed process cannot close its record. If it still runs, `dsprof hang --live` looks at it."
)


def ended(tell: Telling) -> HangVerdict:
    """Judge a run in which no rank is known to wait."""
    if tell.hang.is_of_dumps:
        return _dumped(tell.hang)
    if at_store := _at_store(tell):
        return at_store
    ends = tell.endings.ranks
    if all(is_of_environment(end.trailer) for end in ends.values()):
        return HangVerdict(
            kind="unknown",
            cause=Cause("unknown", "`dsprof report` judges other files."),
            sentence="Unknown: no dsprof trace of a run and no flight recorder dump was read.",
        )
    asked_ns = [e.failed_ns for e in ends.values() if e.is_interrupted and e.failed_ns]
    until_ns = min(asked_ns, default=math.inf)  # what failed after Ctrl-C failed by it
    failed = {
        r: e
        for r, e in ends.items()
        if e.trailer is not None and e.trailer.exception and (e.failed_ns or 0) < until_ns
    }
    gone = {r: e for r, e in ends.items() if e.symptoms.state == GONE and e.breaks_off}
    if silent := silent_before(failed, ends):
        return _died(tell, silent)
    if failed or gone:
        return _died(tell, failed | gone)
    if hung := sorted(r for r, e in ends.items() if e.hangs_at_end):
        return hung_at_end(hung, tell.endings)
    looks = {rank: end.symptoms for rank, end in ends.items()}
    if stopped := sorted(r for r, e in looks.items() if e.is_seen_now and e.state in STOPPED):
        is_or_are = "is" if len(stopped) == 1 else "are"
        return HangVerdict(
            kind="frozen",
            ranks=tuple(stopped),
            cause=Cause("stopped", f"{capitalised(_ALONE)}."),
            confidence="high",
            sentence=f"{capitalised(named(stopped))} {is_or_are} stopped (SIGSTOP, or a debugger).",
        )
    killed = sorted(r for r, e in ends.items() if e.breaks_off and not e.symptoms.is_alive)
    if killed:
        may_wait = [said for rank in killed if (said := may_wait_in(rank, tell.endings))]
        return HangVerdict(
            kind="unknown",
            ranks=tuple(killed) if len(killed) < len(ends) else (),
            cause=Cause("unknown", " ".join((_MAY_RUN, *may_wait))),
            sentence=f"Unknown: {broken_off(killed)}, and no rank is known to have waited "
            f"{duration(LEAST_WAIT_NS)} or longer.",
        )
    if missing := _missing(tell):
        others = ranks_do(sorted(ends), "wait")
        return HangVerdict(
            kind="unknown",
            ranks=missing if len(missing) <= len(ends) else (),
            cause=Cause("unknown", words.COPY_ALL),
            sentence=f"Unknown: no trace of {named(missing)} was read. {others} for no other rank.",
        )
    if not all(end.is_whole for end in ends.values()):
        return HangVerdict(
            kind="none",
            confidence="medium",
            sentence=f"No rank waited for another one while the run was recorded.{_left(ends)}",
        )
    return HangVerdict(
        kind="none",
        ranks=tuple(going_on := _going_on(ends)),
        cause=Cause("unknown", _KEPT if going_on else ""),
        stacks=tell.stacks(going_on[:2]),
        confidence="high",
        sentence=f"No rank waits for another one.{_exited_late(ends)}{_left(ends)}",
    )


def hung_at_end(ranks: Sequence[int], endings: Endings) -> HangVerdict:
    """Judge ranks in which no Python ran after the end of their process group."""
    looks = {rank: endings.ranks[rank].symptoms for rank in ranks}
    return HangVerdict(
        kind="frozen",
        ranks=tuple(ranks),
        cause=no_python(ranks[0], looks[ranks[0]]),
        stacks={str(rank): looks[rank].stack for rank in ranks[:2] if looks[rank].stack},
        confidence="medium",  # or a long call of C, which would have returned
        sentence=f"{capitalised(named(ranks))} destroyed the process group, then hung: no Python "
        f"ran any more. {capitalised(_ALONE)}.",
    )


def _missing(tell: Telling) -> tuple[int, ...]:
    """Return the ranks of the run of which no trace was read."""
    ends = tell.endings.ranks
    world_size = max(end.world_size for end in ends.values())
    return tuple(rank for rank in range(world_size) if rank not in ends)


def silent_before(failed: Mapping[int, Ending], ends: Mapping[int, Ending]) -> Mapping[int, Ending]:
    """Return the killed ranks that went silent before others lost a connection to them."""
    if not failed or any(e.trailer and e.lost != "connection" for e in failed.values()):
        return {}
    first_ns = min(e.failed_ns or e.alive_ns for e in failed.values())
    return {
        r: e
        for r, e in ends.items()
        if e.breaks_off and not e.symptoms.is_alive and e.alive_ns <= first_ns
    }


def ended_with(killed: Iterable[int], ends: Mapping[int, Ending]) -> tuple[int, ...]:
    """Return the ranks that ended by themselves while all that were killed may have lived.

    A launcher kills the others when a rank fails. A rank that only lost others is not among them.
    """
    until_ns = min((latest_ns(ends[rank]) for rank in killed if rank in ends), default=0)
    return tuple(
        rank
        for rank, end in sorted(ends.items())
        if end.trailer is not None
        and end.trailer.reason in (EXIT, INTERRUPTED)
        and not end.trailer.lost
        and (end.failed_ns or end.alive_ns) <= until_ns
    )


def exited_before(failed: Mapping[int, Ending], ends: Mapping[int, Ending]) -> tuple[int, ...]:
    """Return the ranks that had exited or left their group before others lost a connection."""
    first_ns = min((e.failed_ns or e.alive_ns for e in failed.values()), default=0)
    return tuple(
        r
        for r, e in ends.items()
        if (
            (e.trailer.reason, e.trailer.exception) == (EXIT, "") and e.alive_ns <= first_ns
            if e.trailer is not None
            else e.left_ns is not None and e.left_ns <= first_ns
        )
    )


def _at_store(tell: Telling) -> HangVerdict | None:
    """Judge ranks that wait where ranks meet before they can communicate; None: there are none."""
    looks = {rank: ending.symptoms for rank, ending in tell.endings.ranks.items()}
    waiting = tuple(sorted(rank for rank, look in looks.items() if look.store_call))
    if not waiting:
        return None
    call = looks[waiting[0]].store_call
    who = f"{ranks_do(waiting, 'wait')} in {call}"
    if lost := next((look.lost_store for look in looks.values() if look.lost_store), ""):
        text = "The process that hosts it is gone, stopped or unreachable: torchrun's, or rank 0."
        return HangVerdict(
            kind="network",
            waiting=waiting,
            cause=Cause("store", text),
            stacks=tell.stacks(waiting[:2]),
            confidence="high",
            sentence=f"{who} for the store at {lost}, which does not answer.",
        )
    absent = tuple(sorted(looks.keys() - {*waiting}))
    if not absent or any(_is_dead(tell.endings.ranks[rank]) for rank in absent):
        return None
    own = in_own_code(looks[absent[0]])
    return HangVerdict(
        kind="never_entered",
        ranks=absent,
        waiting=waiting,
        cause=Cause(own[0], f"Rank {absent[0]} {own[1]}.") if own else Cause("unknown", ""),
        stacks=tell.stacks([absent[0], waiting[0]]),
        confidence="medium",
        sentence=f"{who}, which {named(absent)} did not call.",
    )


def _is_dead(ending: Ending) -> bool:
    trailer = ending.trailer
    return bool(trailer and trailer.exception) or ending.symptoms.state == GONE


def _dumped(hang: Hang) -> HangVerdict:
    if hang.apart:
        return HangVerdict(kind="unknown", sentence=words.apart(hang.apart))
    if len(hang.flights.ranks) == 1:
        (only,) = hang.flights.ranks
        return HangVerdict(
            kind="unknown",
            cause=Cause("unknown", "Give the dumps of all ranks."),
            sentence=f"Unknown: only rank {only} was dumped.",
        )
    if not (pending := hang.stuck_groups):
        return _in_pairs(hang) or HangVerdict(
            kind="none", sentence="No collective was in flight in the dumps."
        )
    first, more = words.call(pending[0]), len(pending) - 1
    what, whom = (
        (f"{first} and collectives of {plural(more, 'more group')} were", "them")
        if more
        else (f"{first} was", "it")
    )
    late = _not_started(pending[0])
    but = f", but the device of {named(late)} had not started it" if late else ""
    return HangVerdict(
        kind="unknown",
        ranks=late,
        cause=Cause("unknown", _HEALTHY_OR_STUCK),
        sentence=f"{what} in flight; every rank with a dump had joined {whom}{but}.",
    )


def _not_started(state: GroupState) -> tuple[int, ...]:
    """Return the ranks whose device is not in a call that others are in."""
    started = {rank: call.is_started for rank, call in state.calls.items()}
    return tuple(rank for rank in started if not started[rank]) if any(started.values()) else ()


def _in_pairs(hang: Hang) -> HangVerdict | None:
    """Say that only sends and receives are in flight, whose numbers do not tell who is missing."""
    pairs = [
        f"rank {rank} in {pair}"
        for rank, dump in hang.flights.ranks.items()
        if (pair := words.pair(dump))
    ]
    if not pairs:
        return None
    more = f", and {plural(len(pairs) - _NAMED, 'more rank')}" if len(pairs) > _NAMED else ""
    return HangVerdict(
        kind="unknown",
        cause=Cause("unknown", _HEALTHY_OR_STUCK),
        sentence="Only sends and receives were in flight in the dumps: "
        f"{', '.join(pairs[:_NAMED])}{more}.",
    )


def _died(tell: Telling, dead: Mapping[int, Ending]) -> HangVerdict:
    """The rank that ended first is the root: the others may have followed it."""
    failed, dead = dead, first_failed(dead)
    first = min(dead, key=lambda rank: dead[rank].failed_ns or dead[rank].alive_ns)
    ending = dead[first]
    kinds = {e.trailer.exception if e.trailer else "" for e in dead.values()}
    trailer = ending.trailer
    cause = by_exception(first, tell.endings, trailer) if trailer else by_kill(first, tell.endings)
    has_all = tell.endings.has_all
    everyone = has_all and len(dead) == len(tell.endings.ranks) > 1 and len(kinds) == 1
    everyone |= cause.kind == "store" and len(dead) > 1  # which is no rank
    has_followed = tell.endings.has_followed(first)  # a rank of which no end is known
    is_sure = everyone or (has_all and len(dead) == 1 and not has_followed)
    who = tuple(sorted(dead)) if everyone else (first,)
    by = f"ended by {trailer.exception}" if trailer else "died"
    followed = sorted(failed.keys() - dead.keys())
    others = f"{named(followed)} then lost the connection or timed out" if followed else _ALONE
    return HangVerdict(
        kind="died",
        ranks=() if everyone or has_followed else who,
        cause=cause,
        stacks=tell.stacks(who[:2]),
        confidence="high" if is_sure else "medium",
        sentence=f"{capitalised(named(who))} {by}; {others}.",
    )


def _exited_late(ends: Mapping[int, Ending]) -> str:
    """Say which rank ended long after all others: a thread of it may not have ended."""
    ordered = sorted(ends, key=lambda rank: ends[rank].alive_ns)
    if len(ordered) < 2:
        return ""
    last, late_ns = ordered[-1], ends[ordered[-1]].alive_ns - ends[ordered[-2]].alive_ns
    return f" Rank {last} ended {duration(late_ns)} after the others." if late_ns > _LATE_NS else ""


def _going_on(ends: Mapping[int, Ending]) -> list[int]:
    """Return the ranks that live after they left their process group, or closed their record."""
    return [
        rank
        for rank, end in ends.items()
        if end.symptoms.is_alive
        and (end.left_ns is not None or (end.trailer is not None and end.trailer.reason == EXIT))
    ]


def _left(ends: Mapping[int, Ending]) -> str:
    """Say which ranks were killed when they had left their process group, or still run."""
    going_on = _going_on(ends)
    left = [rank for rank, end in ends.items() if end.left_ns is not None and rank not in going_on]
    whose = "its record" if len(left) == 1 else "their records"
    who = capitalised(named(left))
    said = f" {who} destroyed the process group, then did not close {whose}." if left else ""
    run = "it still runs" if len(going_on) == 1 else "they still run"
    return said + f" {capitalised(named(going_on))} ended training, and {run}." * bool(going_on)
