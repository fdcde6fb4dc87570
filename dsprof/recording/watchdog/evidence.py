"""Evidence of a rank on itself, and of its node on ranks that cannot answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dsprof.environment.processes import GONE, process_start
from dsprof.errors import TraceError
from dsprof.files.redaction import map_text
from dsprof.recording.recorder.recorder import Recorder
from dsprof.recording.watchdog import look
from dsprof.recording.watchdog.pace import SECOND_NS
from dsprof.trace.dumps.faulthandler_text import threads_of
from dsprof.trace.dumps.hang_dump import HangDump, ProcessState
from dsprof.trace.dumps.state_file import RankState, parsed_state
from dsprof.trace.schema import Header, MemorySample
from dsprof.trace.scope import clock

SILENT_NS = 3 * SECOND_NS
"""A sign of life comes several times a second, where Python runs."""

_PY_SPY_S = 20.0
_LARGEST_TEXT = 200_000


class Evidence:
    """Makes dumps, of this rank and of others on its node."""

    def __init__(
        self,
        recorder: Recorder,
        header: Header,
        disclose: Callable[[Any], Any],
        sample_memory: Callable[[str, int], MemorySample],
    ) -> None:
        self._recorder, self._header, self._disclose = recorder, header, disclose
        self._sample_memory = sample_memory
        self._oom_kills = look.oom_kills(os.getpid())

    def own(
        self, reason: str, quiet_ns: int, *, is_active: bool = False, lost_store: str = ""
    ) -> HangDump:
        """Return where this rank is, its stacks, its memory and what the kernel says of it."""
        process = look.process_state(os.getpid())
        dump = HangDump(
            header=self._header,
            noticed_epoch_ns=time.time_ns(),
            noticed_ns=clock(),
            reason=f"rank {self._header.rank} {reason}",
            quiet_ns=quiet_ns,
            threads=look.stacks(),
            process=msgspec.structs.replace(
                process, oom_kills=self._kills(), sockets=look.sockets(os.getpid())
            ),
            memory=self._sample_memory("hang", self._recorder.progress.scope.step),
            is_active=is_active,
            lost_store=lost_store,
        )
        disclosed: HangDump = map_text(dump, self._disclose)
        return msgspec.structs.replace(disclosed, state=self._state())

    def with_native_stacks(self, dump: HangDump) -> HangDump:
        """Return a dump with the stacks in C++, for which this process is stopped for a while."""
        stacks = self._disclose(_native_stacks(os.getpid()))
        return msgspec.structs.replace(dump, native_stacks=stacks)

    def _state(self) -> RankState | None:
        """Return the live state of this rank, which is as it may be written."""
        live = self._recorder.in_flight.state
        with suppress(TraceError):
            return parsed_state(live.data, live.path or Path())
        return None

    def seen(self, state: RankState, before: ProcessState | None, apart_ns: int) -> HangDump:
        """Return what this node shows of a rank; `before` is what it showed `apart_ns` ago."""
        now_ns, process = clock(), look_at(state.header.pid, state.process_start)
        if process.state == GONE:
            process = msgspec.structs.replace(process, oom_kills=self._kills())
        is_silent = state.stacks_ns > 0 or now_ns - state.beat_ns > SILENT_NS
        return HangDump(
            header=state.header,
            noticed_epoch_ns=time.time_ns(),
            noticed_ns=now_ns,
            reason=f"seen by rank {self._header.rank}",
            state=msgspec.structs.replace(state, stacks=""),
            threads=map_text(threads_of(state.stacks), self._disclose),
            process=process,
            holds_interpreter=is_silent and process.state not in ("t", "T", GONE),
            is_active=before is not None and look.is_active(before, process, apart_ns),
            is_own=False,
        )

    def _kills(self) -> int:
        """Return how many processes of this cgroup the kernel has killed since the start."""
        return look.oom_kills(os.getpid()) - self._oom_kills


def look_at(pid: int, start: int) -> ProcessState:
    """Look at the process of a live state, unless its number is another one's by now."""
    is_it = process_start(pid) == start
    return look.process_state(pid) if is_it else ProcessState(state=GONE)


def _native_stacks(pid: int) -> str:
    """Return what py-spy says; "" where it is not installed, or may not look."""
    beside = Path(sys.executable).with_name("py-spy")
    tool = shutil.which("py-spy") or (str(beside) if beside.exists() else "")
    if not tool:
        return ""
    command = [tool, "dump", "--native", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_PY_SPY_S, check=False, text=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout[:_LARGEST_TEXT]
