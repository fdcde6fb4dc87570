"""The thread that looks, once a second, whether training goes on.

It takes no lock, asks no device and no Work: the writer's thread has just asked those. As long as
something goes on, a look is a few dozen microseconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dsprof.config import Config
from dsprof.errors import TraceError
from dsprof.findings.wording import duration
from dsprof.recording.recorder import Recorder
from dsprof.redaction import map_text
from dsprof.trace.hang_dump import HangDump, write_dump
from dsprof.trace.schema import Collective, Header, MemorySample
from dsprof.trace.scope import clock
from dsprof.trace.state_file import RankState, read_state
from dsprof.watchdog import look
from dsprof.watchdog.pace import SECOND_NS, Pace

TICK_S = 1.0


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
        after_s = None if config.hang_after == "auto" else config.hang_after
        self._after_ns = None if after_s is None else round(after_s * SECOND_NS)
        self._disclose, self._sample_memory, self._say = disclose, sample_memory, say
        self._tick_s = TICK_S if after_s is None else min(TICK_S, after_s / 4)
        self._has_dumped = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dsprof-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no more; does not wait for the thread."""
        self._end.set()

    def _run(self) -> None:
        pace = Pace(clock(), round(self._tick_s * SECOND_NS), self._after_ns)
        try:
            while not self._end.wait(self._tick_s):
                self._tick(pace)
        except Exception as error:  # noqa: BLE001 - it may end; training goes on
            self._recorder.fail("watchdog", error)

    def _tick(self, pace: Pace) -> None:
        now_ns = clock()
        in_flight = [*self._in_flight()]
        pace.tick(now_ns, self._mark(in_flight), self._recorder.progress.steps)
        quiet_ns = pace.quiet_ns(now_ns)
        oldest_ns = now_ns - min((one.issue_ns for one in in_flight), default=now_ns)
        if min(quiet_ns, oldest_ns) < pace.threshold_ns:
            self._has_dumped = False
        elif not self._has_dumped:
            self._has_dumped = True
            self._report(in_flight, quiet_ns)

    def _in_flight(self) -> Iterator[Collective]:
        tables = self._recorder.in_flight
        yield from list(tables.blocking.values())
        yield from list(tables.enqueued.values())
        for _, record in list(tables.works.values()):
            if not record.done_ns:
                yield record

    def _mark(self, in_flight: list[Collective]) -> Hashable:
        """Return what differs once anything has gone on."""
        progress = self._recorder.progress
        newest = max((one.id for one in in_flight), default=0)
        return progress.steps, id(progress.scope), repr(self._recorder.ids), len(in_flight), newest

    def _report(self, in_flight: list[Collective], quiet_ns: int) -> None:
        oldest = min(in_flight, key=lambda one: one.issue_ns)
        waited = duration(clock() - oldest.issue_ns)
        reason = f"rank {self._header.rank} has waited {waited} in {oldest.op} {oldest.seq}"
        path = write_dump(self._folder, self._dump(reason, quiet_ns))
        self._say(f"{reason}; see {path}")

    def _dump(self, reason: str, quiet_ns: int) -> HangDump:
        dump = HangDump(
            header=self._header,
            noticed_epoch_ns=time.time_ns(),
            noticed_ns=clock(),
            reason=reason,
            quiet_ns=quiet_ns,
            threads=look.stacks(),
            process=look.process_state(os.getpid()),
            memory=self._sample_memory("hang", self._recorder.progress.scope.step),
        )
        disclosed: HangDump = map_text(dump, self._disclose)
        return msgspec.structs.replace(disclosed, state=self._state())

    def _state(self) -> RankState | None:
        """Return the live state of this rank, which is as it may be written."""
        path = self._recorder.in_flight.state.path
        with suppress(TraceError):
            return read_state(path) if path is not None else None
        return None
