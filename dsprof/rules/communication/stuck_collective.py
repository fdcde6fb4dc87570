"""stuck-collective: collectives that cannot end, and the ranks that keep the others waiting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.run.endings import LEAST_WAIT_NS
from dsprof.analysis.run.flight_recorders import GroupState, culprits, group_states
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.wording import named
from dsprof.rules.communication.stuck_collective_tables import held_up_groups, last_calls
from dsprof.rules.communication.stuck_collective_traces import findings_of_traces
from dsprof.rules.knowledge.stage3 import LEAF_MODULES
from dsprof.rules.rule import Rule, RuleMeta


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What is more than the moment at which each rank was dumped, or its record ended."""

    unfinished: int = 2  # collectives of one group that another rank has ended and this one has not
    waited_s: float = LEAST_WAIT_NS / 1e9  # a shorter wait at the end of traces proves nothing


class StuckCollective:
    """Compares ranks by the numbers of collectives in each group, in dumps or at ends of traces."""

    meta = RuleMeta(
        id="stuck-collective",
        title="Every rank joined every collective",
        failing_title="Ranks did not join collectives that others wait in",
        why="A collective ends only after all ranks have joined it: one missing rank blocks "
        "the whole run until a timeout ends it.",
        category="communication",
        order=80,
        needs=(FlightRecorders, Endings),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Name the ranks that are absent, those that did not finish, and those without a dump."""
        if run[FlightRecorders].ranks:
            yield from self._of_dumps(run[FlightRecorders], thresholds)
        elif run[Endings].ranks:
            yield from findings_of_traces(self.meta, run[Endings], round(thresholds.waited_s * 1e9))
        else:
            text = "No dsprof trace and no dump of torch's flight recorder was given."
            yield self.meta.finding(Status.NOT_APPLICABLE, text)

    def _of_dumps(self, flights: FlightRecorders, thresholds: Thresholds) -> Iterable[Finding]:
        states = group_states(flights)
        if all(len(state.unknown) == len(state.members) - 1 for state in states):
            text = "Unknown: only one rank was dumped. Give the dumps of all ranks."
            yield self.meta.finding(Status.UNKNOWN, text)
            return
        found = [
            *self._absent(states, flights),
            *self._unfinished(states, thresholds),
            *self._undumped(states),
        ]
        yield from found or self._in_flight(states)

    def _absent(self, states: Sequence[GroupState], flights: FlightRecorders) -> Iterable[Finding]:
        held_up = [state for state in states if state.absent]
        if not held_up:
            return
        ranks = tuple(culprits(states))
        first = next(state for state in held_up if set(ranks) & set(state.absent))
        in_circle = all(any(r in state.waiting for state in held_up) for r in ranks)
        knows = all(flights.ranks[rank].knows_completion for rank in ranks)
        peers = _peers(ranks, flights)
        yield self.meta.finding(
            Status.FAIL,
            f"{named(ranks).capitalize()} did not join collectives that others wait in. First: "
            f"{_call(first)}, called by {named(first.waiting)}, not by {named(first.absent)}.",
            severity=Severity.CRITICAL,
            cause="Each of these ranks waits for another one in another group: the ranks use the "
            "groups in different orders."
            if in_circle
            else f"{peers}; its peer may be the cause."
            if peers
            else f"The process hung, died, or took a different branch.{_zero3(first)}",
            action=f"Look at the stack of {named(ranks)} (py-spy dump --pid PID) and at the end of "
            f"its log.{_seen_last(ranks, flights)}{_leaf(first)}"
            if len(ranks) == 1
            else f"Look at the stacks of {named(ranks)} (py-spy dump --pid PID) and at the ends of "
            f"their logs.{_seen_last(ranks, flights)}{_leaf(first)}",
            ranks=ranks,
            evidence=(last_calls(ranks, flights), held_up_groups(held_up)),
            confidence="low" if peers else "high" if knows else "medium",
        )

    def _unfinished(
        self, states: Sequence[GroupState], thresholds: Thresholds
    ) -> Iterable[Finding]:
        lagging = [s for s in states if s.unfinished_by >= thresholds.unfinished]
        if not lagging:
            return
        ranks = tuple(sorted({rank for state in lagging for rank in state.unfinished}))
        most = max(lagging, key=lambda state: state.unfinished_by)
        yield self.meta.finding(
            Status.FAIL,
            f"{named(ranks).capitalize()} did not finish collectives that others in the group "
            f"finished: up to {most.unfinished_by} in {most.label}.",
            title="Ranks did not finish collectives that others finished",
            severity=Severity.CRITICAL,
            cause="The host enqueued them, but the device did not complete them: a device error, "
            "or a kernel that never ends.",
            action="Look for Xid or ECC errors of the device (dmesg, nvidia-smi -q) and for CUDA "
            "errors in the log of the rank.",
            ranks=ranks,
            evidence=(held_up_groups(lagging),),
            confidence="medium",
        )

    def _undumped(self, states: Sequence[GroupState]) -> Iterable[Finding]:
        """Ranks without a dump, where all others of a group have joined and wait."""
        suspect = [
            state
            for state in states
            if state.waiting
            and not state.absent
            and 0 < 2 * len(state.unknown) < len(state.members)
        ]
        if suspect:
            ranks = tuple(sorted({rank for state in suspect for rank in state.unknown}))
            yield self.meta.finding(
                Status.FAIL,
                f"{named(ranks).capitalize()} left no dump, and all other ranks of "
                f"{suspect[0].label} wait in {_call(suspect[0])}.",
                title="The others may wait for ranks without a dump",
                severity=Severity.HIGH,
                cause="A process that died, or whose watchdog hung, writes no dump.",
                action=f"Look at the log of {named(ranks)}, and add the dump if there is one."
                if len(ranks) == 1
                else f"Look at the logs of {named(ranks)}, and add their dumps if there are any.",
                ranks=ranks,
                evidence=(held_up_groups(suspect),),
                confidence="low",
            )

    def _in_flight(self, states: Sequence[GroupState]) -> Iterable[Finding]:
        pending = [state for state in states if state.waiting]
        if pending:
            yield self.meta.finding(
                Status.INFO,
                f"{_call(pending[0])} and collectives of {len(pending) - 1} more groups were in "
                "flight; every rank with a dump had joined them.",
                title="Collectives that every rank had joined were in flight",
                cause="The run was healthy at that moment, or the network or a device is stuck.",
                evidence=(held_up_groups(pending),),
            )


def _peers(ranks: Sequence[int], flights: FlightRecorders) -> str:
    """Say in which send or receive the first of these ranks waits itself; "" if in none."""
    for rank in ranks:
        dump = flights.ranks[rank]
        for name, group in dump.groups.items():
            for entry in group.p2p_in_flight:
                members = dump.members.get(name, ())
                other = entry.target if entry.op == "send" else entry.source
                whom = f" with rank {members[other]}" if 0 <= other < len(members) else ""
                return f"Rank {rank} itself waits in {entry.op}{whom}"
    return ""


def _call(state: GroupState) -> str:
    op = state.call.op if state.call else "collective"
    return f"{op} number {state.seq:,} of {state.label}"


def _zero3(state: GroupState) -> str:
    if state.call is None or not state.call.is_of_zero3:
        return ""
    return " ZeRO-3 called it, and hangs where a rank does not run a module that others run."


def _leaf(state: GroupState) -> str:
    return f" {LEAF_MODULES}" if state.call and state.call.is_of_zero3 else ""


def _seen_last(ranks: Sequence[int], flights: FlightRecorders) -> str:
    frames = {rank: flights.ranks[rank].last_frame for rank in ranks}
    rank = next((rank for rank in ranks if frames[rank]), None)
    return "" if rank is None else f" Rank {rank} called its last collective at {frames[rank]}."


RULE: Rule = StuckCollective()
