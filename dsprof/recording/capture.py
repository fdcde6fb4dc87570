"""The thread of a rolling recording by which all ranks keep the same steps.

A request comes from the folder (`dsprof capture`), or from a rank in which a step was far slower
than usual. The first rank of a node that sees it proposes steps; the first proposal counts, at the
store of the default group or, without one, in the folder. Ranks of a node tell each other in its
memory. No rank waits for another.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dsprof.environment import count
from dsprof.files import notes
from dsprof.recording.watchdog.exchange import connect, default_store, within
from dsprof.trace.dumps.state_file import memory_folders, state_name
from dsprof.trace.rolling.capture import LEAST_PAUSE_S, Captured, agree, asked, decoded
from dsprof.trace.rolling.writer import RollingWriter
from dsprof.trace.schema import Header
from dsprof.trace.scope import clock

_TICK_S = 1.0
_FAR_TICKS = 5
"""So many ticks apart the first rank of a node looks at the store for what others agreed on."""

_AHEAD_NS = 10_000_000_000
_LEAST_AHEAD = 5
"""The first step is so far ahead that all ranks know of it by then."""

_QUIET_NS = 600_000_000_000
"""A rank announces a slow step at most so often."""

_AROUND = 4
"""Steps kept before a slow one; twice as many follow."""

_LARGEST_BYTES = 4096

T = TypeVar("T")


class Capture:
    """Follows requests for one rank, from the start of its trace to the end."""

    def __init__(
        self,
        header: Header,
        folder: Path,
        writer: RollingWriter,
        step: Callable[[], int],
        fail: Callable[[str, BaseException], None],
    ) -> None:
        self._folder, self._writer, self._step, self._fail = folder, writer, step, fail
        self._started_s = header.started_epoch_ns / 1e9
        self._key = f"dsprof/capture/{header.run_key}"
        memory = next(memory_folders(), None)
        run = state_name(header.run_key, 0, 0).rsplit("-", 2)[0]
        self._near = memory / f"{run}-capture.state" if memory else None
        self._leads = header.local_rank <= 0 or self._near is None
        self._is_alone = count(os.environ.get("LOCAL_WORLD_SIZE", "")) == header.world_size
        self._connection: Any = None
        self._known: set[str] = set()
        self._last_ns = -LEAST_PAUSE_S * 1_000_000_000
        self._quiet_until_ns = 0
        self._ticks = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dsprof-capture", daemon=True)

    def start(self) -> None:
        """Begin to look for requests."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; does not wait for the thread."""
        self._end.set()
        if self._leads and self._near is not None:
            with suppress(OSError):
                self._near.unlink(missing_ok=True)

    def _run(self) -> None:
        try:
            while not self._end.wait(_TICK_S):
                self._tick()
        except Exception as error:  # noqa: BLE001 - it may end; training goes on
            self._fail("capture", error)

    def _tick(self) -> None:
        self._ticks += 1
        if self._near is not None:
            self._follow(decoded(notes.read(self._near, _LARGEST_BYTES)))
        if slow := self._writer.slow_step:
            self._writer.slow_step = 0
            self._alarm(slow)
        if not self._leads:
            return
        request = asked(self._folder)
        if request is not None and request.asked_s >= self._started_s:
            self._propose(Captured(request.id, self._step() + self._ahead(), request.steps))
        if not self._is_alone and self._ticks % _FAR_TICKS == 0:
            self._follow(decoded(within(self._told_by_nodes) or b""))

    def _alarm(self, step: int) -> None:
        """Tell all of a slow step, which they still hold: there is nothing to agree on."""
        if clock() < self._quiet_until_ns:
            return
        self._quiet_until_ns = clock() + _QUIET_NS
        found = Captured(f"slow-{step}", max(step - _AROUND, 0), _AROUND * 3)
        within(lambda: self._store().set(self._key, msgspec.json.encode(found)))
        self._tell(found)
        self._follow(found)

    def _ahead(self) -> int:
        usual_ns = self._writer.interest.usual_ns
        return max(_LEAST_AHEAD, round(_AHEAD_NS / usual_ns)) if usual_ns else _LEAST_AHEAD

    def _propose(self, proposal: Captured) -> None:
        """Agree on the steps of a request that is new, unless it follows another too soon."""
        is_soon = clock() - self._last_ns < LEAST_PAUSE_S * 1_000_000_000
        if proposal.id in self._known or is_soon:
            return
        found = decoded(within(lambda: self._agreed_at_store(proposal)) or b"") or proposal
        with suppress(OSError):  # a full disk: the other ranks may know from the store
            found = agree(self._folder, found)
        self._tell(found)
        self._follow(found)

    def _tell(self, found: Captured) -> None:
        """Tell the ranks of this node."""
        if self._near is not None:
            with suppress(OSError):
                notes.put(self._near, msgspec.json.encode(found))

    def _follow(self, found: Captured | None) -> None:
        """Keep the steps that ranks agreed on."""
        if found is None or found.id in self._known:
            return
        self._known.add(found.id)
        self._last_ns = clock()
        self._writer.wanted.append(found.range)
        if self._leads:
            self._tell(found)

    # -- the store, in a thread of its own --------------------------------------

    def _store(self) -> Any:
        if self._connection is None:
            self._connection = connect(default_store())
        return self._connection

    def _agreed_at_store(self, proposal: Captured) -> bytes:
        store, data = self._store(), msgspec.json.encode(proposal)
        first = bytes(store.compare_set(f"{self._key}/{proposal.id}", "", data.decode()))
        store.set(self._key, first)
        return first

    def _told_by_nodes(self) -> bytes:
        store = self._store()
        return bytes(store.get(self._key)) if store.check([self._key]) else b""
