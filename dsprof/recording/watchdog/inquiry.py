"""The inquiry after a rank has waited for too long: all tell where they are, one of them judges.

The leader of a node is its lowest rank whose watchdog runs. It sums up its node for the others,
hears what they say, and tells its node what is behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from dsprof.environment.processes import GONE
from dsprof.errors import message_of
from dsprof.findings.wording import duration, named
from dsprof.recording.watchdog.evidence import SILENT_NS, Evidence, look_at
from dsprof.recording.watchdog.exchange import Conclusion, Exchange
from dsprof.recording.watchdog.history import THRESHOLDS, History
from dsprof.recording.watchdog.judgement import Judgement, Obstacle, is_overdue, judge
from dsprof.recording.watchdog.look import stacks
from dsprof.recording.watchdog.pace import SECOND_NS
from dsprof.recording.watchdog.standings import met_in, standings_of
from dsprof.trace.dumps.hang_dump import HangDump, ProcessState, store_call
from dsprof.trace.dumps.state_file import Sign, process_digest
from dsprof.trace.schema import Header
from dsprof.trace.scope import clock

T = TypeVar("T")

_AWAKE_NS = 2 * SECOND_NS
"""A rank whose last sign of life is older cannot speak for itself at the moment."""

_RECENT_NS = 2 * SECOND_NS
"""Ranks that suspect a hang at the same time tell where they are before they are asked."""

_NODE_S, _NODES_S, _CONCLUSION_S = 5.0, 15.0, 24.0
"""How long answers of this node, of other nodes, and a conclusion are awaited, at most."""


@dataclass(frozen=True, slots=True)
class Looks:
    """Processes of this node, as the kernel showed them at some time."""

    at_ns: int
    by_rank: Mapping[int, ProcessState]

    @classmethod
    def take(cls, signs: Iterable[Sign]) -> Looks:
        """Look at all of them."""
        return cls(clock(), {sign.rank: look_at(sign.pid, sign.process_start) for sign in signs})


class Inquiries:
    """Asks, answers and concludes, for one rank, in the thread of its watchdog.

    `goes_on` says whether anything has gone on since the inquiry began; `pause` waits.
    """

    def __init__(
        self,
        header: Header,
        exchange: Exchange,
        evidence: Evidence,
        goes_on: Callable[[], bool],
        pause: Callable[[float], object],
    ) -> None:
        self._header, self._exchange, self._evidence = header, exchange, evidence
        self._goes_on, self._pause = goes_on, pause
        self.history = History()
        self._dump: HangDump | None = None  # of this rank, in the last inquiry

    def inquire(
        self, reason: str, quiet_ns: int, threshold_ns: int, looks: Looks, *, asks: bool
    ) -> Conclusion | None:
        """Return what is behind the wait of this rank or another; None: it goes on, or nothing."""
        self._exchange.begin()
        if asks:
            self._exchange.ask(far=False)
        try:
            return self._inquire(reason, quiet_ns, threshold_ns, looks)
        finally:
            self._exchange.end()

    def forget(self) -> None:
        """Begin anew: something has gone on."""
        self.history = History()
        self._exchange.withdraw()

    def dump_more(self) -> None:
        """Write the dump of this rank again, with its stacks in C++."""
        if self._dump is not None:
            self._exchange.write(self._evidence.with_native_stacks(self._dump))

    def _inquire(
        self, reason: str, quiet_ns: int, threshold_ns: int, looks: Looks
    ) -> Conclusion | None:
        since_ns = clock() - _RECENT_NS  # an answer to the inquiry before may have come late
        here = self._shown(looks)
        own = here.get(self._header.rank)
        dump = self._evidence.own(
            reason,
            quiet_ns,
            is_active=quiet_ns < threshold_ns // 2 or (own is not None and own.is_active),
            lost_store=self._exchange.lost_store() if store_call(stacks()) else "",
        )
        self._dump = dump
        self._exchange.tell(dump)
        found = self._until(self._conclusion_or_lead, _CONCLUSION_S)
        if isinstance(found, Conclusion):
            return found
        if found is None or self._goes_on():
            return None
        here = self._told_here(looks, since_ns) | {self._header.rank: dump}
        return None if self._goes_on() else self._lead(here, quiet_ns, threshold_ns)

    def _conclusion_or_lead(self) -> Conclusion | Literal[False] | None:
        """Return what the leader of this node has found; False: this rank is the leader."""
        return self._exchange.conclusion(far=False) or (False if self.leads() else None)

    def _lead(
        self, here: dict[int, HangDump], quiet_ns: int, threshold_ns: int
    ) -> Conclusion | None:
        """Tell other nodes, and say what is behind it."""
        waits = any(is_overdue(one, threshold_ns) for one in standings_of(here).values())
        if waits:
            self._exchange.ask(far=True)
        self._exchange.tell_nodes(here)
        if waits:
            everywhere = self._told_by_nodes() | here
            found = None if self._goes_on() else self._judged(everywhere, quiet_ns, threshold_ns)
        else:  # another node asked, and has all that it takes
            found = self._until(lambda: self._exchange.conclusion(far=True), _CONCLUSION_S)
        if found is not None:
            self._exchange.conclude(found, far=waits)
        return found

    # -- answers ---------------------------------------------------------------------------------

    def _shown(self, looks: Looks) -> dict[int, HangDump]:
        apart_ns = clock() - looks.at_ns
        return {
            state.header.rank: self._evidence.seen(
                state, looks.by_rank.get(state.header.rank), apart_ns
            )
            for state in self._exchange.on_node()
        }

    def leads(self) -> bool:
        """Say whether this is the lowest rank of its node that can speak for itself."""
        return self._header.rank <= min(self._able(_AWAKE_NS), default=self._header.rank)

    def _able(self, silent_ns: int) -> set[int]:
        """Return the ranks of this node that have shown life lately, and are not stopped."""
        return {
            sign.rank
            for sign in self._exchange.signs()
            if clock() - sign.beat_ns < silent_ns
            and look_at(sign.pid, sign.process_start).state not in ("t", "T", GONE)
        }

    def _told_here(self, looks: Looks, since_ns: int) -> dict[int, HangDump]:
        """Return where the ranks of this node are, by what they say if they can."""
        told: dict[int, HangDump] = {}

        def have_told() -> bool:
            nonlocal told
            told = self._exchange.told_here(since_ns)
            return self._able(SILENT_NS) - {self._header.rank} <= told.keys()

        self._until(lambda: have_told() or None, _NODE_S)
        return self._shown(looks) | told

    def _told_by_nodes(self) -> dict[int, HangDump]:
        """Return what leaders say; each look takes all that was said, so there are few of them."""
        end_s, wait_s = time.monotonic() + _NODES_S, 0.5
        while True:
            told = self._exchange.told_by_nodes()
            if self._exchange.is_alone or len(told) >= self._header.world_size:
                return told
            if time.monotonic() + wait_s > end_s or self._goes_on():
                return told
            self._pause(wait_s)
            wait_s *= 2

    def _until(self, ask: Callable[[], T | None], most_s: float) -> T | None:
        """Return the first answer that comes; None: none in time, or the run goes on."""
        end_s = time.monotonic() + most_s
        while (found := ask()) is None and time.monotonic() < end_s and not self._goes_on():
            self._pause(0.25)
        return found

    # -- the conclusion --------------------------------------------------------------------------

    def _judged(
        self, found: Mapping[int, HangDump], quiet_ns: int, threshold_ns: int
    ) -> Conclusion | None:
        standings = standings_of(found, self.history.last)
        judgement = judge(standings, threshold_ns, met_in(found))
        self.history.add(found)
        if not judgement.obstacles:
            return None
        able = [rank for rank, dump in found.items() if dump.is_own]
        text, ranks = (
            _stuck(found, judgement, threshold_ns)
            if judgement.is_stuck
            else (self._slow(judgement, quiet_ns >= THRESHOLDS * threshold_ns), ())
        )
        return Conclusion(
            text=text,
            is_stuck=judgement.is_stuck,
            ranks=ranks,
            speaker=min(able, default=self._header.rank),
            noticed_epoch_ns=time.time_ns(),
            processes=b"".join(process_digest(dump.header) for dump in found.values()),
        )

    def _slow(self, judgement: Judgement, is_very_late: bool) -> str:
        busy = [
            said
            for rank, one in judgement.obstacles.items()
            if one == "active" and is_very_late and (said := self.history.busy(rank))
        ]
        if not busy:
            is_known = "unrecorded" not in judgement.obstacles.values()
            how = "slow, not stuck" if is_known else "slow or stuck"
            return f"{how}: {in_words(judgement.obstacles)}; other ranks wait"
        return (
            f"{'; '.join(busy)}; other ranks wait. It computes for very long, or in a loop that "
            "does not end."
        )


_SAID = {
    "active": "is busy outside collectives",
    "joining": "is in a collective that may still complete",
    "debugged": "is in a debugger",
    "saving": "saves a checkpoint",
    "idle": "does nothing outside collectives",
    "stopped": "is stopped",
    "gone": "is gone",
    "locked": "runs no Python: a C call holds the interpreter lock",
    "storeless": "waits for the store of torch.distributed, which does not answer",
    "joined": "is in a collective that does not complete",
    "deadlock": "is in a cycle of ranks that wait for each other",
    "unreachable": "does not answer",
    "unrecorded": "has not come to a collective yet, or died before",
}


def _stuck(
    found: Mapping[int, HangDump], judgement: Judgement, threshold_ns: int
) -> tuple[str, tuple[int, ...]]:
    """Return the paragraph, and the ranks that it names."""
    why = ""
    try:
        from dsprof.recording.watchdog.paragraph import paragraph, verdict_of

        if (verdict := verdict_of(found, threshold_ns // 2)) is not None:
            return paragraph(verdict), verdict.ranks
    except Exception as error:  # noqa: BLE001 - what is loaded only now may be of another version
        why = f" (the analysis failed: {type(error).__name__}: {message_of(error)})"
    said = in_words(judgement.obstacles, _oldest_joined(found, judgement))
    return f"stuck: {said}{why}", tuple(judgement.obstacles)


def _oldest_joined(found: Mapping[int, HangDump], judgement: Judgement) -> str:
    """Return the collective that all are in and that does not complete, if it is known."""
    calls = [
        (call.issue_ns - dump.noticed_ns, call, dump.state.groups.get(call.group))
        for rank, dump in found.items()
        if judgement.obstacles.get(rank) == "joined" and dump.state is not None
        for call in dump.state.in_flight[:1]
    ]
    if not calls:
        return ""
    issued_ns, call, group = min(calls, key=lambda one: one[0])
    of_group = f" of {group.label or group.name}" if group else ""
    return f" (the oldest: {call.op} {call.seq:,}{of_group}, issued {duration(-issued_ns)} ago)"


def in_words(obstacles: Mapping[int, Obstacle], oldest_joined: str = "") -> str:
    """Say what keeps ranks from going on, kind by kind."""
    parts = []
    for kind in sorted(set(obstacles.values())):
        ranks = sorted(rank for rank, one in obstacles.items() if one == kind)
        verb, rest = _SAID[kind].split(" ", 1)
        if len(ranks) > 1:
            verb = {"is": "are", "does": "do", "has": "have"}.get(verb, verb.removesuffix("s"))
        parts.append(f"{named(ranks)} {verb} {rest}{oldest_joined if kind == 'joined' else ''}")
    return "; ".join(parts)
