"""The thread of a rolling recording by which all ranks keep the same steps.

A request comes from the folder (`dsprof capture`) or by a signal, an alarm from the writer of a
rank. What a rank proposes first counts, for all nodes. No rank waits for another.

A store may outlive a run; a killed run leaves its announcement in memory, and a request in the
folder. So what a rank finds there when it begins counts as that of an earlier run: the clocks of
nodes and terminals are not compared.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dsprof.environment.launchers import count
from dsprof.files import notes
from dsprof.recording.capture.announcements import (
    HELD,
    LOOK_TICKS,
    AllNodes,
    NodeMemory,
    kind_of,
)
from dsprof.recording.capture.on_signal import CaptureSignal
from dsprof.recording.group_store import name_of_run
from dsprof.trace.latch import Latch
from dsprof.trace.rolling.alarms import Alarm
from dsprof.trace.rolling.capture import (
    LEAST_AHEAD,
    LEAST_PAUSE_S,
    Captured,
    agree,
    asked,
    forget_announced,
)
from dsprof.trace.rolling.writer import RollingWriter
from dsprof.trace.schema import Header
from dsprof.trace.scope import clock

if TYPE_CHECKING:
    from dsprof.recording.capture.profiler.window import ProfilerWindow

_TICK_S = 1.0
_TOLD_S = 2 * LOOK_TICKS * _TICK_S
"""After so long all nodes have seen an announcement in the folder."""

_UNLED_TICKS = 30
"""A rank leads itself after so long without a leader, as in a container with its own memory."""

_AHEAD_S = 10
"""The first step is so far ahead that all ranks know of it by then."""

_QUIET_NS = 600_000_000_000
"""Least time between alarms of a kind, on all ranks together; others are dropped."""

_PAUSE_NS = LEAST_PAUSE_S * 1_000_000_000

_AROUND = 4
"""Steps kept before a slow one; twice as many follow."""

_STEPS = 32
"""Steps kept after another alarm, or a signal: rules need 24, and two of warm-up."""

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
        signal: CaptureSignal | None = None,
        profiler: ProfilerWindow | None = None,
    ) -> None:
        self._folder, self._writer, self._step, self._fail = folder, writer, step, fail
        self._header, self._rank = header, header.rank
        self._profiler = profiler
        self._signal = signal
        self._passed = ""  # the request that is over, or of an earlier run
        run = name_of_run(header)
        self._node = NodeMemory(run, folder)
        self._nodes = AllNodes(run, folder, partial(fail, "capture"))
        has_leader = self._node.is_there and header.local_rank >= 0  # else each leads itself
        self._leads = header.local_rank == 0 or not has_leader
        near_ranks = count(os.environ.get("LOCAL_WORLD_SIZE", "")) if has_leader else 1
        self._is_alone = header.world_size in (near_ranks, 1)
        self._has_looked = False  # for what other nodes announced
        self._proposals: list[Captured] = []  # of this rank, not yet handed over, one of each kind
        self._ticks_unled = 0
        self._renewed_ns = 0  # the announcement to this node
        self._told: deque[Captured] = deque(maxlen=HELD)
        self._is_told = False  # to the node
        self._known: deque[str] = deque(maxlen=_REMEMBERED)
        self._last_ns = -_PAUSE_NS
        self._quiet_until_ns: dict[str, int] = {}  # by the kind of the proposal
        self._at_step = step()
        self._steps_a_tick = 0
        self._end = Latch()
        self._thread = threading.Thread(target=self._run, name="dsprof-capture", daemon=True)

    def start(self) -> None:
        """Begin to look for requests."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; does not wait for the thread."""
        self._end.set()
        self._node.close(leads=self._leads)
        if self._leads:
            forget_announced(self._folder, time.time() - _TOLD_S)

    def _run(self) -> None:
        try:
            self._begin()
            while not self._end.wait(_TICK_S):
                self._tick()
        except Exception as error:  # noqa: BLE001 - it may end; training goes on
            self._fail("capture", error)

    def _begin(self) -> None:
        """Pass over what an earlier run was asked for, announced or proposed."""
        notes.refresh(self._folder)
        if (request := asked(self._folder)) is not None:
            self._passed = request.id
        self._known.extend(one.id for one in self._node.announced() or ())
        if self._leads:
            self._node.take()
            self._tell()
            self._look_far()

    def _tell(self) -> None:
        """Announce to this node what ranks agreed on; if its memory is full, try again later."""
        self._is_told = self._node.announce(self._told)

    def _look_far(self) -> None:
        """Follow what other nodes announced since this rank began."""
        found = None if self._is_alone else self._nodes.announced()
        if found is None:
            return
        if not self._has_looked:
            self._known.extend(one.id for one in found)
        self._has_looked = True
        self._follow(found)

    def _tick(self) -> None:
        self._look_at_pace()
        self._hear()
        waiting = {*map(kind_of, self._proposals)}
        self._proposals += [one for one in self._noticed() if kind_of(one) not in waiting]
        if self._leads:
            self._lead()
        else:
            self._proposals = [
                one
                for one in self._proposals
                if not self._is_answered(one) and not self._node.propose(one)
            ]

    def _hear(self) -> None:
        """Follow what the leader of the node announced; lead if there is none."""
        found, before_ns = self._node.announced(), self._renewed_ns
        self._renewed_ns = self._node.renewed_ns()
        is_led = found is not None and self._renewed_ns != before_ns
        self._ticks_unled = 0 if is_led else self._ticks_unled + 1
        self._leads = self._leads or self._ticks_unled > _UNLED_TICKS
        self._follow(found or ())

    def _lead(self) -> None:
        """Agree with other nodes, on behalf of this one."""
        if not (self._is_told and self._node.renew()):
            self._tell()
        if self._nodes.is_due():
            self._look_far()
            notes.refresh(self._folder)
        self._follow_request()
        proposals, self._proposals = self._proposals, []
        for one in (self._node.take(), *proposals):
            if one is not None:
                self._agree(one)

    def _follow_request(self) -> None:
        """Answer a request that is new, unless this node cannot hear what it promises."""
        request = asked(self._folder)
        if request is None or not request.is_of(self._header):
            return
        if request.id == self._passed or self._is_soon():
            return
        self._tell()
        if self._is_told:
            proposal = self._ahead(request.id, request.steps, "dsprof capture")
            self._agree(proposal, is_request=True)
            self._passed = request.id

    def _look_at_pace(self) -> None:
        """Count the steps since the last look."""
        before, self._at_step = self._at_step, self._step()
        self._steps_a_tick = self._at_step - before

    def _noticed(self) -> list[Captured]:
        """Return what this rank proposes because of alarms or a signal."""
        if alarms := self._writer.alarms.take():
            return [self._around(one) for one in alarms if not self._is_ours(one)]
        if self._signal is not None and not self._is_soon() and self._signal.take():
            cause = f"{self._signal.name} on rank {self._rank}"
            return [self._ahead(f"signal-{secrets.token_hex(8)}", _STEPS, cause)]
        return []

    def _is_ours(self, alarm: Alarm) -> bool:
        """Whether a window of the profiler was open in its step."""
        return self._profiler is not None and self._profiler.slows(alarm.step)

    def _around(self, alarm: Alarm) -> Captured:
        name = f"{alarm.kind}-{secrets.token_hex(8)}"  # an earlier run may have named this step
        cause = f"step {alarm.step:,} of rank {self._rank}: {alarm.cause}"
        if alarm.is_over:  # all ranks still hold it: there is no step to agree on
            steps = (max(alarm.step - _AROUND, 0), _AROUND * 3)
            return Captured(name, *steps, "alarm", cause)
        return self._ahead(name, _STEPS, cause, "alarm")

    def _ahead(
        self, name: str, steps: int, cause: str, why: Literal["capture", "alarm"] = "capture"
    ) -> Captured:
        """Return steps that no rank will have reached when all ranks know of them."""
        usual_ns = self._writer.interest.usual_ns  # unknown at first; lags behind
        by_usual = round(_AHEAD_S * 1e9 / usual_ns) if usual_ns else 0
        ahead = max(LEAST_AHEAD, by_usual, round(_AHEAD_S / _TICK_S * self._steps_a_tick))
        return Captured(name, self._step() + ahead, steps, why, cause)

    def _agree(self, proposal: Captured, *, is_request: bool = False) -> None:
        """Agree on a proposal that is new; another's that came first counts instead."""
        if self._is_answered(proposal):
            return
        if is_request:
            with suppress(OSError):  # a full disk: the other ranks may know from the store
                proposal = agree(self._folder, proposal)
        found = [proposal]
        if self._has_looked:
            found = self._nodes.agree(proposal, {*self._known})
        self._follow(found)

    def _is_answered(self, proposal: Captured) -> bool:
        """Whether ranks agreed on it, or lately on another of its kind."""
        is_quiet = clock() < self._quiet_until_ns.get(kind_of(proposal), 0)
        return is_quiet or proposal.id in self._known

    def _is_soon(self) -> bool:
        """Whether what ranks agreed on last is too fresh for something else."""
        return clock() - self._last_ns < _PAUSE_NS

    def _follow(self, found: Iterable[Captured]) -> None:
        """Keep the steps that ranks agreed on."""
        new = [one for one in found if one.id not in self._known]
        for one in new:
            self._keep(one)
        if new and self._leads:
            self._told.extend(new)
            self._tell()

    def _keep(self, found: Captured) -> None:
        self._known.append(found.id)
        self._last_ns = clock()
        if found.why == "alarm":
            self._quiet_until_ns[kind_of(found)] = self._last_ns + _QUIET_NS
        else:
            self._quiet_until_ns["signal"] = self._last_ns + _PAUSE_NS
            if self._signal is not None:
                self._signal.take()  # all ranks may have got it at once
        self._writer.wanted.append(found)
        if self._profiler is not None:
            self._profiler.want(found.range, is_alarm=found.why == "alarm")
