"""The thread of a rolling recording by which all ranks keep the same steps.

A request comes from the folder (`dsprof capture`) or by a signal, an alarm from the writer of a
rank. What a rank proposes first counts, at the store of the default group or, without one, in the
folder. Ranks of a node tell each other in its memory. No rank waits for another.

A store may outlive a run, and a killed run leaves its announcement in memory. So what a rank finds
there when it begins counts as that of an earlier run: the clocks of nodes are not compared.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from dsprof.environment import count
from dsprof.files import notes
from dsprof.recording.capture_signal import NO_SIGNAL, CaptureSignal
from dsprof.recording.watchdog.exchange import Questions, connect, default_store
from dsprof.trace.dumps.state_file import memory_folders, state_name
from dsprof.trace.rolling.alarms import Alarm
from dsprof.trace.rolling.capture import (
    LARGEST_BYTES,
    LEAST_PAUSE_S,
    Captured,
    agree,
    announce,
    announced,
    asked,
    decoded,
    forget_announced,
)
from dsprof.trace.rolling.writer import RollingWriter
from dsprof.trace.schema import Header
from dsprof.trace.scope import clock

if TYPE_CHECKING:
    from dsprof.recording.profiler_window.window import ProfilerWindow

T = TypeVar("T")

_TICK_S = 1.0
_FAR_TICKS = 5
"""The first rank of a node looks this often, in ticks, for what other nodes agreed on."""

_RAREST_FAR_TICKS = 64 * _FAR_TICKS
"""It looks ever more rarely at a store that does not answer: torch complains of each attempt."""

_TOLD_S = 2 * _FAR_TICKS * _TICK_S
"""After so long all nodes have seen an announcement in the folder."""

_AHEAD_S = 10
_LEAST_AHEAD = 5
"""The first step is so far ahead that all ranks know of it by then."""

_QUIET_NS = 600_000_000_000
"""Least time between alarms of a kind, on all ranks together; others are dropped."""

_AROUND = 4
"""Steps kept before a slow one; twice as many follow."""

_STEPS = 20
"""Steps kept after another alarm, or a signal."""

_REMEMBERED = 64
"""Windows: what ranks tell is replaced by what they tell next."""


class Capture:
    """Follows requests and alarms for one rank, from the start of its trace to the end."""

    def __init__(
        self,
        header: Header,
        folder: Path,
        writer: RollingWriter,
        step: Callable[[], int],
        fail: Callable[[str, BaseException], None],
        signal: str = NO_SIGNAL,
        profiler: ProfilerWindow | None = None,
    ) -> None:
        self._folder, self._writer, self._step, self._fail = folder, writer, step, fail
        self._rank = header.rank
        self._profiler = profiler
        self._signal = self._look_for(signal)
        self._started_s = header.started_epoch_ns / 1e9
        self._key = f"dsprof/capture/{header.run_key}"
        memory = next(memory_folders(), None)
        # Runs that share a key, such as two of mp.spawn, have different folders.
        run = state_name(f"{header.run_key} {os.path.realpath(folder)}", 0, 0).rsplit("-", 2)[0]
        self._near = memory / f"{run}-capture.state" if memory else None
        self._leads = header.local_rank <= 0 or self._near is None
        near_ranks = count(os.environ.get("LOCAL_WORLD_SIZE", ""))
        self._is_alone = header.world_size in (near_ranks, 1)
        self._questions = Questions()
        self._connection: Any = None
        self._has_looked = False  # for what other nodes agreed on
        self._known: deque[str] = deque(maxlen=_REMEMBERED)
        self._last_ns = -LEAST_PAUSE_S * 1_000_000_000
        self._quiet_until_ns: dict[str, int] = {}  # by the kind of the alarm
        self._far_ticks = _FAR_TICKS
        self._ticks_to_far = _FAR_TICKS
        self._at_step = step()
        self._steps_a_tick = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dsprof-capture", daemon=True)

    def _look_for(self, signal: str) -> CaptureSignal | None:
        try:
            return None if signal == NO_SIGNAL else CaptureSignal(signal)
        except (ValueError, RuntimeError) as error:
            self._fail("capture_signal", error)
            return None

    def start(self) -> None:
        """Begin to look for requests."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; does not wait for the thread."""
        self._end.set()
        if self._signal is not None:
            self._signal.close()
        if not self._leads:
            return
        forget_announced(self._folder, time.time() - _TOLD_S)
        if self._near is not None:
            with suppress(OSError):
                self._near.unlink(missing_ok=True)

    def _run(self) -> None:
        try:
            self._begin()
            while not self._end.wait(_TICK_S):
                self._tick()
        except Exception as error:  # noqa: BLE001 - it may end; training goes on
            self._fail("capture", error)

    def _begin(self) -> None:
        """Pass over what an earlier run announced."""
        if (left := self._told_here()) is not None:
            self._known.append(left.id)
        if self._leads and not self._is_alone:
            self._look_far()

    def _told_here(self) -> Captured | None:
        """Return what a rank of this node has told."""
        return None if self._near is None else decoded(notes.read(self._near, LARGEST_BYTES))

    def _look_far(self) -> None:
        """Follow what other nodes agreed on since this rank began."""
        data = self._ask(self._announced)
        self._ticks_to_far = self._far_ticks
        if data is None:
            return
        found, is_old = decoded(data), not self._has_looked
        self._has_looked = True
        if found is not None and is_old:
            self._known.append(found.id)
        else:
            self._follow(found)

    def _tick(self) -> None:
        self._ticks_to_far -= 1
        self._look_at_pace()
        self._follow(self._told_here())
        if alarm := self._writer.alarms.last:
            self._writer.alarms.last = None
            self._alarm(alarm)
        if self._signal is not None and not self._is_soon() and self._signal.take():
            cause = f"{self._signal.name} on rank {self._rank}"
            self._tell_all(self._ahead(secrets.token_hex(8), _STEPS, cause))
        if not self._leads:
            return
        request = asked(self._folder)
        if request is not None and request.asked_s >= self._started_s:
            self._propose(self._ahead(request.id, request.steps, "dsprof capture"))
        if not self._is_alone and self._ticks_to_far <= 0:
            self._look_far()

    def _look_at_pace(self) -> None:
        """Count the steps since the last look."""
        before, self._at_step = self._at_step, self._step()
        self._steps_a_tick = self._at_step - before

    def _alarm(self, alarm: Alarm) -> None:
        """Tell all ranks of an alarm here, unless a rank has just done so."""
        is_ours = self._profiler is not None and self._profiler.slows(alarm.step)
        if is_ours or clock() < self._quiet_until_ns.get(alarm.kind, 0):
            return
        name = f"{alarm.kind}-{secrets.token_hex(8)}"  # an earlier run may have named this step
        cause = f"step {alarm.step:,} of rank {self._rank}: {alarm.cause}"
        if alarm.is_over:  # all ranks still hold it: there is no step to agree on
            steps = (max(alarm.step - _AROUND, 0), _AROUND * 3)
            self._tell_all(Captured(name, *steps, "alarm", cause))
        else:
            self._tell_all(self._ahead(name, _STEPS, cause, "alarm"))

    def _ahead(
        self, name: str, steps: int, cause: str, why: Literal["capture", "alarm"] = "capture"
    ) -> Captured:
        """Return steps that no rank will have reached when all ranks know of them."""
        usual_ns = self._writer.interest.usual_ns  # unknown at first; lags behind
        by_usual = round(_AHEAD_S * 1e9 / usual_ns) if usual_ns else 0
        ahead = max(_LEAST_AHEAD, by_usual, round(_AHEAD_S / _TICK_S * self._steps_a_tick))
        return Captured(name, self._step() + ahead, steps, why, cause)

    def _propose(self, proposal: Captured) -> None:
        """Agree on the steps of a request that is new, unless it follows another too soon."""
        if proposal.id in self._known or self._is_soon():
            return
        found = decoded(self._ask(lambda: self._agreed_at_store(proposal)) or b"") or proposal
        with suppress(OSError):  # a full disk: the other ranks may know from the store
            found = agree(self._folder, found)
        self._follow(found)

    def _is_soon(self) -> bool:
        """Whether what ranks agreed on last is too fresh for something else."""
        return clock() - self._last_ns < LEAST_PAUSE_S * 1_000_000_000

    def _tell_all(self, proposal: Captured) -> None:
        """Tell all ranks what this one proposes; another's that came first counts instead."""
        found = decoded(self._ask(lambda: self._first_at_store(proposal)) or b"") or proposal
        self._follow(found)
        self._tell(found)

    def _tell(self, found: Captured) -> None:
        """Tell the ranks of this node."""
        if self._near is not None:
            with suppress(OSError):
                notes.put(self._near, msgspec.json.encode(found))

    def _follow(self, found: Captured | None) -> None:
        """Keep the steps that ranks agreed on."""
        if found is None or found.id in self._known:
            return
        self._known.append(found.id)
        self._last_ns = clock()
        if found.why == "alarm":
            kind = found.id.partition("-")[0]
            self._quiet_until_ns[kind] = self._last_ns + _QUIET_NS
        elif self._signal is not None:
            self._signal.take()  # all ranks may have got it at once
        self._writer.wanted.append(found)
        if self._profiler is not None:
            self._profiler.want(found.range, is_alarm=found.why == "alarm")
        if self._leads:
            self._tell(found)

    # -- other nodes, in a thread of its own -----------------------------------------------------

    def _ask(self, question: Callable[[], T]) -> T | None:
        """Return what the store or the folder answers; None if it does not."""
        answer = self._questions.within(question)
        if answer is None:
            self._connection = None
            self._far_ticks = min(2 * self._far_ticks, _RAREST_FAR_TICKS)
        else:
            self._far_ticks = _FAR_TICKS
        return answer

    def _store(self) -> Any:
        """Return a connection of our own to the store; None where there is none."""
        if self._connection is None and (store := default_store()) is not None:
            self._connection = connect(store)
        return self._connection

    def _agreed_at_store(self, proposal: Captured) -> bytes:
        """Return the first proposal for a request, which ranks of several nodes may see."""
        store, data = self._store(), msgspec.json.encode(proposal)
        first = bytes(store.compare_set(f"{self._key}/{proposal.id}", "", data.decode()))
        store.set(self._key, first)
        return first

    def _first_at_store(self, proposal: Captured) -> bytes:
        """Replace the last announcement by a proposal, unless that is news here."""
        store, data = self._store(), msgspec.json.encode(proposal)
        if store is None:
            if not self._is_alone:
                announce(self._folder, proposal)
            return data
        last = bytes(store.compare_set(self._key, "", data.decode()))
        told = decoded(last)
        if told is None or told.id in self._known or not self._has_looked:
            return bytes(store.compare_set(self._key, last.decode(), data.decode()))
        return last

    def _announced(self) -> bytes:
        store = self._store()
        if store is None:
            return announced(self._folder, self._started_s)
        return bytes(store.get(self._key)) if store.check([self._key]) else b""
