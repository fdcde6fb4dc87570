"""stuck-collective: collectives that cannot end, and the ranks that keep the others waiting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.aggregates.shared_groups import SharedGroups
from dsprof.analysis.hang.flight_recorders import GroupState
from dsprof.analysis.hang.model import HangVerdict
from dsprof.analysis.hang.verdict import UNFINISHED, hang_of, judged
from dsprof.analysis.hang.waits import LEAST_WAIT_NS, Hang
from dsprof.analysis.hang.words import COPY_ALL
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import capitalised, named
from dsprof.rules.evidence.endings import last_completed, raised_at
from dsprof.rules.evidence.hang_remedies import remedy
from dsprof.rules.knowledge.stage3 import LEAF_MODULES
from dsprof.rules.reasons import ONE_DUMP, UNREAD
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.trace.collectives import POINT_TO_POINT

_TITLES = {
    "deadlock": "Ranks are deadlocked",
    "came_late": "A rank came after others had given up",
    "network": "A collective that every rank entered did not complete",
    "unknown": "The others may wait for ranks without a record",
}
_ABSENT = ("never_entered", "died", "frozen")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Limits above the doubt on the moment of each dump or end of a record."""

    unfinished: int = UNFINISHED  # collectives that another rank has ended and this one has not
    waited_s: float = LEAST_WAIT_NS / 1e9  # a shorter wait at the end of traces proves nothing


class StuckCollective(Rule):
    """Compares ranks by the numbers of collectives in each group, in dumps or at ends of traces."""

    meta = RuleMeta(
        id="stuck-collective",
        title="Every rank joined every collective",
        failing_title="Ranks did not join collectives that others wait in",
        why="A collective ends only after all ranks have joined it: one missing rank blocks "
        "the whole run until a timeout ends it.",
        category="communication",
        order=80,
        needs=(FlightRecorders, Endings, SharedGroups),
        judges_end=True,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Report each verdict on the hang; those on mismatches are another rule's."""
        endings, flights = run[Endings], run[FlightRecorders]
        if not (flights.ranks or endings.ranks):
            yield self.meta.not_applicable(
                "No dsprof trace and no dump of torch's flight recorder was given."
            )
            return
        limits = (round(thresholds.waited_s * 1e9), thresholds.unfinished)
        hang = hang_of(endings, flights, *limits, shared=run[SharedGroups].rows)
        if not endings.ranks and _is_alone(hang, flights):
            yield self.meta.unknown(ONE_DUMP)
            return
        verdicts = judged(hang, endings)
        stuck = [v for v in verdicts if (v.operation or v.waiting) and v.kind != "mismatch"]
        yield from (self._finding(one, hang, endings) for one in stuck)
        if hang.mismatched and not stuck:
            yield self.meta.not_applicable("Covered by mismatched-collective.")
        elif not stuck and verdicts[0].kind == "unknown":
            yield self._undecided(verdicts[0], hang, endings)

    def _undecided(self, verdict: HangVerdict, hang: Hang, endings: Endings) -> Finding:
        if hang.apart:
            return self.meta.unknown(verdict.sentence)
        if not hang.is_of_dumps:
            evidence = (last_completed(endings.ranks),)
            return self.meta.unknown(verdict.sentence, evidence=evidence)
        return self.meta.finding(
            Status.INFO,
            verdict.sentence,
            title="Calls were in flight in the dumps",
            cause=verdict.cause.text,
            evidence=(stuck_of(hang.stuck_groups),) if hang.stuck_groups else (),
        )

    def _finding(self, verdict: HangVerdict, hang: Hang, endings: Endings) -> Finding:
        blocked = hang.unfinished if verdict.is_of_device else hang.stuck_groups
        states = [state for state in blocked if state.absent] or blocked
        is_joined = bool(states) and not any(state.absent or state.unknown for state in states)
        is_of_zero3 = any(state.call and state.call.is_of_zero3 for state in states)
        zero3 = " ZeRO-3 called it: it hangs where a rank does not run a module that others run."
        return self.meta.finding(
            Status.FAIL,
            verdict.sentence,
            title=_title(verdict, is_joined=is_joined),
            problem=f"{capitalised(named(verdict.ranks))} did not finish calls that others finished"
            if verdict.is_of_device
            else _raised(verdict, endings) or _in_pair(verdict),
            severity=Severity.CRITICAL,
            cause=verdict.cause.text.replace(COPY_ALL, UNREAD) + zero3 * is_of_zero3,
            action=remedy(verdict, hang, endings) + f" {LEAF_MODULES}" * is_of_zero3,
            ranks=verdict.ranks if verdict.kind != "network" else (),
            evidence=(
                *([stuck_of(states)] if states else []),
                self._last(verdict, hang, endings),
            ),
            confidence=verdict.confidence,
        )

    def _last(self, verdict: HangVerdict, hang: Hang, endings: Endings) -> Table:
        if hang.is_of_dumps:
            dumped = [rank for rank in verdict.ranks if rank in hang.flights.ranks]
            return last_calls(dumped, hang.flights)
        return last_completed(endings.ranks, dict.fromkeys((*verdict.ranks, *verdict.waiting)))


def _is_alone(hang: Hang, flights: FlightRecorders) -> bool:
    """Say whether no two ranks of a group were dumped."""
    states = hang.stuck_groups
    return len(flights.ranks) == 1 or (
        bool(states) and all(len(state.unknown) == len(state.members) - 1 for state in states)
    )


def _raised(verdict: HangVerdict, endings: Endings) -> str:
    """Name the exception of its own that ended the rank that others wait for; "" if none did."""
    ending = endings.ranks.get(verdict.ranks[0]) if len(verdict.ranks) == 1 else None
    if ending is None or ending.trailer is None or ending.has_lost_others:
        return ""
    exception, place = ending.trailer.exception, raised_at(verdict.ranks, endings.ranks)
    return f"Rank {verdict.ranks[0]} ended by {exception}{place}" if exception else ""


def _in_pair(verdict: HangVerdict) -> str:
    """Say whose send or receive had no other side; "" of any other call."""
    call = verdict.operation
    if call is None or call.op not in POINT_TO_POINT or verdict.kind not in _ABSENT:
        return ""
    whose = named(verdict.waiting)
    return f"{capitalised(named(verdict.ranks))} did not answer {call.op} {call.seq:,} of {whose}"


def _title(verdict: HangVerdict, *, is_joined: bool) -> str:
    if verdict.is_of_device:
        return "Ranks did not finish collectives that others finished"
    return _TITLES.get(verdict.kind, _TITLES["network"] if is_joined else "")


_ROWS = 32


def last_calls(ranks: Sequence[int], flights: FlightRecorders) -> Table:
    """Say what ranks did last, as their dumps tell."""
    return Table(
        columns=(Column("rank"), Column("collectives in flight", "count"), Column("called last")),
        rows=tuple(
            (
                rank,
                sum(len(group.in_flight) for group in flights.ranks[rank].groups.values()),
                flights.ranks[rank].last_frame or "the dump holds no stacks",
            )
            for rank in ranks[:_ROWS]
        ),
        caption="What these ranks did last",
    )


def stuck_of(states: Sequence[GroupState]) -> Table:
    """Say of groups who waits in them, and for whom."""
    return Table(
        columns=(
            Column("group"),
            Column("name"),
            Column("number", "count"),
            Column("operation"),
            Column("elements", "count"),
            Column("type"),
            Column("called from"),
            Column("called by"),
            Column("not called by"),
            Column("not finished by"),
            Column("waited", "ns"),
        ),
        rows=tuple(
            (
                state.label,
                state.name,
                state.seq,
                state.call.op if state.call else "",
                max(state.call.elements) if state.call else None,
                state.call.dtype if state.call else "",
                state.call.frame if state.call else "",
                named(state.waiting) if state.waiting else "",
                named(state.absent) if state.absent else "",
                named(state.unfinished) if state.unfinished else "",
                state.waited_ns or None,
            )
            for state in states[:_ROWS]
        ),
        caption="Blocked groups, earliest first",
    )
