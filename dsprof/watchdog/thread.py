"""The thread that looks, once a second, whether training goes on.

It takes no lock, asks no device and no Work: the writer's thread has just asked those. As long as
something goes on, a look is a few dozen microseconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dsprof.config import Config
from dsprof.environment.processes import GONE
from dsprof.errors import TraceError
from dsprof.findings.wording import duration, named
from dsprof.recording.live_state import keep_state, process_start
from dsprof.recording.recorder import Recorder
from dsprof.redaction import map_text
from dsprof.trace.dumps.faulthandler_text import threads_of
from dsprof.trace.dumps.hang_dump import HangDump, ProcessState, ThreadStack
from dsprof.trace.dumps.state_file import RankState, kept_name, read_state
from dsprof.trace.schema import Collective, Header, MemorySample, Note
from dsprof.trace.scope import clock
from dsprof.watchdog import look
from dsprof.watchdog.exchange import Exchange
from dsprof.watchdog.judgement import Judgement, judge
from dsprof.watchdog.native_stacks import native_stacks
from dsprof.watchdog.pace import LEAST_NS, SECOND_NS, Pace
from dsprof.watchdog.standings import standings_of

EXIT_CODE = 75
"""Of `on_hang: abort`: EX_TEMPFAIL, "try again". Launchers restart after any but 0."""

TICK_S = 1.0
_LOOK_S = (1.0, 8.0)
"""How long a process is looked at, at least and at most, to see whether it does anything."""

_SILENT_NS = 3 * SECOND_NS
"""A sign of life comes several times a second, where Python runs."""

_STARVED_NS = (1 * SECOND_NS, 15 * SECOND_NS)
"""Without one for so long, at least and at most, the compiled helper writes stacks."""

_MOST_CALLS = 1000


class Watchdog:
    """Watches one rank, from the start of its trace to the end."""

    def __init__(
        self,
        recorder: Recorder,
        header: Header,
        config: Config,
        disclose: Callable[[Any], Any],
        sample_memory: Callable[[str, int], MemorySample],
        say: Callable[[str], None],
    ) -> None:
        self._recorder, self._header, self._folder = recorder, header, Path(config.out)
        self._on_hang = config.on_hang
        after_s = None if config.hang_after == "auto" else config.hang_after
        self._after_ns = None if after_s is None else round(after_s * SECOND_NS)
        self._disclose, self._sample_memory, self._say = disclose, sample_memory, say
        self._tick_s = TICK_S if after_s is None else min(TICK_S, after_s / 4)
        self._live = recorder.in_flight.state
        least_ns, most_ns = _STARVED_NS
        self._starved_ns = min(max((self._after_ns or LEAST_NS) // 4, least_ns), most_ns)
        self._exchange = Exchange(header, self._folder)
        self._patience = 1  # thresholds until the next inquiry: twice as many after each
        self._is_judged = False
        self._asks = 0
        self._oom_kills = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dsprof-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        if not self._header.anonymized:  # the stacks hold paths
            self._live.expect_life(self._starved_ns)
        self._thread.start()

    def stop(self) -> None:
        """Watch no more; does not wait for the thread."""
        self._end.set()
        self._live.expect_life(0)
        self._exchange.close()

    def _run(self) -> None:
        try:
            self._oom_kills = look.oom_kills(os.getpid())
            pace = Pace(clock(), round(self._tick_s * SECOND_NS), self._after_ns)
            while not self._end.wait(self._tick_s):
                self._tick(pace)
        except Exception as error:  # noqa: BLE001 - it may end; training goes on
            self._recorder.fail("watchdog", error)

    def _tick(self, pace: Pace) -> None:
        now_ns = clock()
        self._live.beat(self._recorder.progress.scope)  # the writer's thread may wait for a disk
        in_flight = [*self._in_flight()]
        pace.tick(now_ns, self._mark(in_flight), self._recorder.progress.steps)
        quiet_ns, threshold_ns = pace.quiet_ns(now_ns), pace.threshold_ns
        oldest = min(in_flight, key=lambda one: one.issue_ns, default=None)
        waited_ns = min(quiet_ns, now_ns - oldest.issue_ns) if oldest else 0
        if quiet_ns < threshold_ns:
            self._patience, self._is_judged = 1, False
        if oldest and not self._is_judged and waited_ns >= self._patience * threshold_ns:
            self._patience *= 2
            waited = f"has waited {duration(now_ns - oldest.issue_ns)} in {oldest.op} {oldest.seq}"
            self._inquire(waited, quiet_ns, threshold_ns, is_asking=True)
        elif self._is_asked(is_quiet=quiet_ns >= threshold_ns):
            self._inquire("was asked where it is", quiet_ns, threshold_ns, is_asking=False)
        else:
            return
        pace.forgive(clock())  # what was done here took longer than a tick

    def _is_asked(self, *, is_quiet: bool) -> bool:
        """Look on the node, and more and more seldom, while nothing goes on, at the store."""
        self._asks = self._asks + 1 if is_quiet else 0
        return self._exchange.is_asked(far=self._asks & (self._asks - 1) == 0 and is_quiet)

    def _in_flight(self) -> Iterator[Collective]:
        tables = self._recorder.in_flight
        yield from list(tables.blocking.values())
        yield from list(tables.enqueued.values())[:_MOST_CALLS]
        for _, record in list(tables.works.values())[:_MOST_CALLS]:
            if not record.done_ns:
                yield record

    def _mark(self, in_flight: list[Collective]) -> Hashable:
        """Return what differs once anything has gone on."""
        progress = self._recorder.progress
        newest = max((one.id for one in in_flight), default=0)
        return progress.steps, id(progress.scope), repr(self._recorder.ids), len(in_flight), newest

    # -- once it is quiet for too long -----------------------------------------------------------

    def _inquire(self, reason: str, quiet_ns: int, threshold_ns: int, *, is_asking: bool) -> None:
        since_ns = time.time_ns() - 2 * threshold_ns
        mark = self._mark([*self._in_flight()])
        if is_asking:
            self._exchange.ask()
        look_s = min(max(threshold_ns / SECOND_NS / 4, _LOOK_S[0]), _LOOK_S[1])
        if is_asking:
            self._exchange.tell(self._dump(reason, quiet_ns, is_active=False))
        before = {state.header.rank: _look(state) for state in self._exchange.on_node()}
        self._end.wait(look_s)
        own = self._header.rank
        after = {state.header.rank: state for state in self._exchange.on_node()}
        apart_ns = round(look_s * SECOND_NS)
        seen = {r: self._seen(s, before.get(r), apart_ns) for r, s in after.items()}
        if not is_asking:
            is_active = own in seen and seen[own].is_active
            self._exchange.tell(self._dump(reason, quiet_ns, is_active=is_active))
        self._end.wait(look_s + 2 * TICK_S if is_asking else 2 * TICK_S)  # others look as long
        seen.pop(own, None)
        if self._end.is_set() or self._mark([*self._in_flight()]) != mark:
            return  # it goes on
        found = self._exchange.gather(since_ns, seen)
        self._conclude(found, judge(standings_of(found), threshold_ns), threshold_ns)

    def _conclude(
        self, found: Mapping[int, HangDump], judgement: Judgement, threshold_ns: int
    ) -> None:
        if not judgement.is_stuck:
            if judgement.obstacles and self._speaks(found):
                self._say(f"slow, not stuck: {_slow(judgement)}")
            return
        from dsprof.watchdog.paragraph import paragraph, verdict_of

        self._is_judged = True
        verdict = verdict_of(found, threshold_ns // 2)
        ranks = verdict.ranks if verdict else tuple(judgement.obstacles)
        text = paragraph(verdict) if verdict else f"stuck: {_obstacles(judgement)}"
        self._recorder.outbox.define(Note(text))
        if self._speaks(found) or self._header.rank in ranks:
            self._say(f"{text}\nFor more, run: dsprof hang --live {self._folder}")
        if self._on_hang == "abort":
            self._abort()

    def _speaks(self, found: Mapping[int, HangDump]) -> bool:
        """Say whether this rank speaks for all: the first one that can."""
        able = [rank for rank, dump in found.items() if dump.is_own]
        return self._header.rank == min(able, default=self._header.rank)

    def _abort(self) -> None:
        path = self._recorder.in_flight.state.path
        with suppress(OSError, TraceError):
            if path is not None:
                keep_state(path, self._folder / kept_name(self._header.rank, os.getpid()))
        time.sleep(TICK_S)  # the writer's thread has written by then
        os._exit(EXIT_CODE)

    def _dump(self, reason: str, quiet_ns: int, *, is_active: bool) -> HangDump:
        is_whole = self._on_hang == "dump"
        process = look.process_state(os.getpid())
        kills = (process.oom_kills or 0) - self._oom_kills
        dump = HangDump(
            header=self._header,
            noticed_epoch_ns=time.time_ns(),
            noticed_ns=clock(),
            reason=f"rank {self._header.rank} {reason}",
            quiet_ns=quiet_ns,
            threads=look.stacks(),
            native_stacks=native_stacks(os.getpid()) if is_whole else "",
            process=msgspec.structs.replace(
                process, oom_kills=kills, sockets=look.sockets(os.getpid())
            ),
            memory=self._sample_memory("hang", self._recorder.progress.scope.step),
            is_active=is_active,
        )
        disclosed: HangDump = map_text(dump, self._disclose)
        return msgspec.structs.replace(disclosed, state=self._state())

    def _state(self) -> RankState | None:
        """Return the live state of this rank, which is as it may be written."""
        path = self._recorder.in_flight.state.path
        with suppress(TraceError):
            return read_state(path) if path is not None else None
        return None

    def _seen(self, state: RankState, before: ProcessState | None, apart_ns: int) -> HangDump:
        """Return what this node shows of a rank that may be unable to speak for itself."""
        now_ns, process = clock(), _look(state)
        kills = look.oom_kills(os.getpid()) - self._oom_kills
        if process.state == GONE:
            process = msgspec.structs.replace(process, oom_kills=kills)
        is_silent = now_ns - state.beat_ns > _SILENT_NS
        threads: list[ThreadStack] = map_text(threads_of(state.stacks), self._disclose)
        return HangDump(
            header=state.header,
            noticed_epoch_ns=time.time_ns(),
            noticed_ns=now_ns,
            reason=f"seen by rank {self._header.rank}",
            is_own=False,
            state=msgspec.structs.replace(state, stacks=""),
            threads=threads,
            process=process,
            holds_interpreter=is_silent and process.state not in ("t", "T", GONE),
            is_active=before is not None and look.is_active(before, process, apart_ns),
        )


def _look(state: RankState) -> ProcessState:
    """Look at the process of a live state, unless its number is another one's by now."""
    if process_start(state.header.pid) != state.process_start:
        return ProcessState(state=GONE)
    return look.process_state(state.header.pid)


_SLOW = {
    "active": "is busy outside collectives",
    "debugged": "is in a debugger",
    "saving": "saves a checkpoint",
}
_STUCK = {
    "idle": "does nothing outside collectives",
    "stopped": "is stopped",
    "gone": "is gone",
    "locked": "runs no Python: a C call holds the interpreter lock",
    "joined": "is in a collective that does not complete",
    "deadlock": "waits for a rank that waits for it",
    "unreachable": "does not answer",
}


def _slow(judgement: Judgement) -> str:
    return _obstacles(judgement) + "; other ranks wait for it"


def _obstacles(judgement: Judgement) -> str:
    said = _SLOW | _STUCK
    kinds = sorted(set(judgement.obstacles.values()))
    parts = []
    for kind in kinds:
        ranks = sorted(rank for rank, one in judgement.obstacles.items() if one == kind)
        parts.append(f"{named(ranks)} {said[kind]}")
    return "; ".join(parts)
