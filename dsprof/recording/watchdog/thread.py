"""The thread that looks, once a second, whether training goes on.

As long as something goes on, a look is a few dozen microseconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from dsprof.config import Config
from dsprof.errors import TraceError
from dsprof.findings.wording import duration
from dsprof.recording.group_store import within
from dsprof.recording.recorder.recorder import Recorder
from dsprof.recording.watchdog.calls import Calls
from dsprof.recording.watchdog.evidence import Evidence
from dsprof.recording.watchdog.exchange import Conclusion, Exchange
from dsprof.recording.watchdog.inquiry import Inquiries, Looks
from dsprof.recording.watchdog.look import stacks
from dsprof.recording.watchdog.pace import LEAST_NS, SECOND_NS, Pace
from dsprof.trace.dumps.hang_dump import store_call
from dsprof.trace.dumps.kept_states import keep_state
from dsprof.trace.dumps.state_file import kept_name
from dsprof.trace.latch import Latch
from dsprof.trace.schema import Collective, Header, MemorySample, Note
from dsprof.trace.scope import clock

EXIT_CODE = 75
"""How `on_hang: abort` ends a rank: EX_TEMPFAIL, "try again". Launchers restart after any but 0."""

TICK_S = 1.0
_LOOK_S = (1.0, 8.0)
"""How long a process is looked at, at least and at most, to see whether it does anything."""

_STARVED_NS = (2 * SECOND_NS, 15 * SECOND_NS)
"""Without a sign of life for so long, at least and at most, the compiled helper writes stacks."""

_EAGER = 60
"""A rank asks the store in every second tick, after this many ticks of silence ever more rarely."""

_SELDOM = 5
"""A rank looks in the folder for questions every so many ticks."""

_ASKED = "was asked where it is"


class Watchdog:
    """Watches one rank, from the start of its trace to the end."""

    def __init__(
        self,
        recorder: Recorder,
        header: Header,
        config: Config,
        folder: Path,
        disclose: Callable[[Any], Any],
        sample_memory: Callable[[str, int], MemorySample],
        say: Callable[[str], None],
    ) -> None:
        self._recorder, self._header, self._folder = recorder, header, folder
        self._on_hang, self._say = config.on_hang, say
        after_s = None if config.hang_after == "auto" else config.hang_after
        self._after_ns = None if after_s is None else round(after_s * SECOND_NS)
        self._tick_s = TICK_S if after_s is None else min(TICK_S, after_s / 4)
        self._live = recorder.in_flight.state
        self._fail = partial(recorder.fail, "watchdog")
        self._exchange = Exchange(
            header, self._folder, lambda text: recorder.outbox.define(Note(text)), self._fail
        )
        self._make_evidence = partial(Evidence, recorder, header, disclose, sample_memory)
        self._patience = 1  # thresholds until the next inquiry
        self._is_judged = False
        self._ticks = 0
        self._looks: list[Looks] = []  # two at most, each some time after the other
        self._begun: Hashable = None  # the mark when the inquiry began
        self._calls = Calls(recorder, self._fail)
        self._end = Latch()
        self._thread = threading.Thread(target=self._run, name="dsprof-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        if not self._header.anonymized:  # the stacks hold paths
            least_ns, most_ns = _STARVED_NS
            self._live.expect_life(min(max((self._after_ns or LEAST_NS) // 4, least_ns), most_ns))
        self._thread.start()

    def stop(self) -> None:
        """Watch no more; does not wait for the thread."""
        self._end.set()
        self._live.expect_life(0)
        self._exchange.close()

    def _run(self) -> None:
        try:
            self._inquiries = Inquiries(
                self._header,
                self._exchange,
                self._make_evidence(),
                self._goes_on,
                self._pause,
            )
            pace = Pace(clock(), round(self._tick_s * SECOND_NS), self._after_ns)
            while not self._end.wait(self._tick_s):
                self._tick(pace)
        except Exception as error:  # noqa: BLE001 - it may end; training goes on
            self._fail(error)

    def _tick(self, pace: Pace) -> None:
        now_ns = clock()
        self._live.beat(self._recorder.progress.scope)  # the writer's thread may wait for a disk
        in_flight = self._calls.in_flight()
        pace.tick(now_ns, self._mark(in_flight), self._recorder.progress.steps)
        quiet_ns, threshold_ns = pace.quiet_ns(now_ns), pace.threshold_ns
        look_ns = round(min(max(threshold_ns / SECOND_NS / 4, _LOOK_S[0]), _LOOK_S[1]) * SECOND_NS)
        is_looked_at, is_quiet = quiet_ns >= threshold_ns - look_ns, quiet_ns >= threshold_ns // 2
        self._calls.show_pairs(is_still=quiet_ns >= SECOND_NS)
        if is_looked_at:
            self._look(look_ns)
        else:
            self._forget()
        self._calls.note_held(now_ns, is_quiet=is_quiet)
        if not (is_looked_at or is_quiet):  # nearly always: nothing has waited for long
            if self._is_asked(quiet_ns - threshold_ns):
                self._inquire(_ASKED, quiet_ns, threshold_ns, asks=False)
                pace.forgive(clock())
            return
        in_flight = (
            in_flight or self._calls.held_up(now_ns, threshold_ns) or self._calls.awaited_pairs()
        )
        waited_ns, reason = self._waited(in_flight, quiet_ns, threshold_ns, now_ns)
        if reason and not self._is_judged and waited_ns >= self._patience * threshold_ns:
            self._inquire(reason, quiet_ns, threshold_ns, asks=True)
        elif not self._is_judged and self._is_asked(quiet_ns - threshold_ns):
            self._inquire(_ASKED, quiet_ns, threshold_ns, asks=False)
        else:
            return
        while waited_ns >= self._patience * threshold_ns:
            self._patience = later(self._patience)
        pace.forgive(clock())  # what was done here took longer than a tick

    def _forget(self) -> None:
        """Begin anew: something has gone on."""
        if self._looks:
            self._looks.clear()
            self._calls.show(self._calls.device_waits())
            self._inquiries.forget()
            self._patience, self._is_judged = 1, False

    def _look(self, look_ns: int) -> None:
        """Keep a look at the processes of this node that is old enough to compare with."""
        if not self._looks or clock() - self._looks[-1].at_ns >= look_ns:
            self._looks = [*self._looks[-1:], Looks.take(self._exchange.signs())]

    def _waited(
        self, in_flight: list[Collective], quiet_ns: int, threshold_ns: int, now_ns: int
    ) -> tuple[int, str]:
        """Return how long this rank has been in a call that waits for others, and which; or ""."""
        if oldest := min(in_flight, key=lambda one: one.issue_ns, default=None):
            since_ns = now_ns - oldest.issue_ns
            said = f"has waited {duration(since_ns)} in {oldest.op} {oldest.seq:,}"
            return min(quiet_ns, since_ns), said
        call = store_call(stacks()) if quiet_ns >= threshold_ns else ""
        return quiet_ns, f"has waited {duration(quiet_ns)} in {call}" if call else ""

    def _is_asked(self, late_ns: int) -> bool:
        """Look on the node, and every few ticks at all nodes: in the store if it is late."""
        self._ticks += 1
        if late_ns < 0:
            is_due = self._ticks % _SELDOM == 0 and self._header.local_rank <= 0
            return self._exchange.is_asked("in_folder" if is_due else "here")
        is_due = asks_store(round(late_ns / SECOND_NS / self._tick_s))
        is_seldom = self._ticks % _SELDOM == 0
        if not ((is_due or is_seldom) and self._inquiries.leads()):
            return self._exchange.is_asked("here")
        return self._exchange.is_asked("anywhere" if is_due else "in_folder")

    def _mark(self, in_flight: list[Collective]) -> Hashable:
        """Return what differs once anything has gone on."""
        progress = self._recorder.progress
        newest = max((one.id for one in in_flight), default=0)
        return progress.steps, id(progress.scope), repr(self._recorder.ids), len(in_flight), newest

    # -- once it is quiet for too long -----------------------------------------------------------

    def _inquire(self, reason: str, quiet_ns: int, threshold_ns: int, *, asks: bool) -> None:
        # What goes on in a rank that was asked is part of the answer.
        self._begun = self._mark(self._calls.in_flight()) if asks else None
        held_up = [*self._calls.held_up(clock(), threshold_ns), *self._calls.awaited_pairs()]
        self._calls.show(held_up)
        if not self._looks:
            self._look(0)
            self._pause(_LOOK_S[0])
        found = self._inquiries.inquire(reason, quiet_ns, threshold_ns, self._looks[0], asks=asks)
        if found is None or self._goes_on():
            return
        still = [*self._calls.ask_device(), *self._calls.awaited_pairs()] if held_up else []
        if {one.id for one in held_up} <= {one.id for one in still}:
            self._follow(found)

    def _goes_on(self) -> bool:
        is_other = self._begun is not None and self._mark(self._calls.in_flight()) != self._begun
        return is_other or self._end.is_set

    def _pause(self, seconds: float) -> None:
        """Wait, and show life: else others would take this rank for one that runs no Python."""
        self._end.wait(seconds)
        self._live.beat(self._recorder.progress.scope)

    def _follow(self, found: Conclusion) -> None:
        rank = self._header.rank
        if rank == found.speaker or rank in found.ranks:
            hint = f"\nFor more, run: dsprof hang --live {self._folder}" if found.is_stuck else ""
            self._say(found.text + hint)
        if not found.is_stuck:
            return
        self._is_judged = True
        text = found.text.partition("\n")[0]  # dumps have the stacks
        self._recorder.outbox.define(Note(text, clock(), hang_ranks=found.ranks))
        if self._on_hang == "dump":
            self._inquiries.dump_more()
        elif self._on_hang == "abort":
            self._abort()

    def _abort(self) -> None:
        within(self._keep_state, self._fail)
        time.sleep(TICK_S)  # the writer's thread has written by then
        os._exit(EXIT_CODE)

    def _keep_state(self) -> None:
        path = self._live.path
        with suppress(OSError, TraceError):
            if path is not None:
                keep_state(path, self._folder / kept_name(self._header))


def asks_store(ticks: int) -> bool:
    """Say whether a rank asks the store after so many ticks without progress."""
    return ticks % 2 == 0 if ticks < _EAGER else ticks & (ticks - 1) == 0


def later(patience: int) -> int:
    """Return after how many thresholds the next inquiry is due: 1, 2, 5, 10, 20, 50 and so on."""
    return patience * 5 // 2 if str(patience)[0] == "2" else patience * 2
