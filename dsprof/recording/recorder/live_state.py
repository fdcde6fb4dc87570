"""Keeps the live state of this rank: what is in flight, in a file in memory.

A hook pays one `issue` and one `done` a collective. Nothing here asks the disk or waits.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dsprof.environment.processes import process_start
from dsprof.files import notes
from dsprof.recording.recorder.hot_state import HotState
from dsprof.recording.recorder.interrupts import raise_if_of_signal_handler
from dsprof.trace.dumps.state_file import (
    BEAT_NS,
    CALL_WORDS,
    CALLS,
    DONE_NS,
    DTYPE_SHIFT,
    GROUPS,
    ID,
    JOB,
    LEFT_NS,
    LOST,
    MAGIC,
    OLD,
    OLD_CALLS,
    PASSED,
    PEER_SHIFT,
    PHASE,
    PID,
    PROCESS_START,
    RANK,
    RING,
    SIZE_BYTES,
    STACKS,
    STARTED_EPOCH_NS,
    STARTED_NS,
    STARVED_NS,
    STEP,
    TEXT,
    TEXT_BYTES,
    WORD_BYTES,
    WORLD_SIZE,
    Line,
    memory_folders,
    state_name,
)
from dsprof.trace.schema import Group, Header, Site
from dsprof.trace.scope import Scope, clock

_MOST_RANKS = 512
"""A group of more ranks is written as first rank and distance, if all distances are equal."""

Close = Callable[[], None]
Issue = Callable[[int, int, int, int, int, int, int, int, int, int], None]
Done = Callable[[int, int], None]


def _nothing(*_: object) -> None:
    """No state is kept, or it is not watched."""


class LiveState:
    """Collectives in flight in this process, for whoever looks at it from outside or afterwards.

    Hooks call `issue` and `done` in any thread, without a lock: a call has its own place, by its
    number. Descriptions are added with `_writing` held, and count once they are whole. In a forked
    child nothing is written.
    """

    def __init__(self) -> None:
        self.issue: Issue = _nothing
        """`(id, seq, where, kind, nbytes, issue_ns, site, step, done_ns, thread)`; `seq` is
        negative for a send or receive, `done_ns` is UNFOLLOWED if its completion is not seen."""
        self.done: Done = _nothing
        """`(id, time_ns)`; the time is negative where a wait for it failed."""
        self.words = Words(self._write)
        self.path: Path | None = None
        self.make_writers: Callable[[memoryview], tuple[Issue, Done, Close]] = writers
        self._close: Close = _nothing
        self.watch_starvation: Callable[[Path], object] = _nothing
        """Has stacks written to the file while no Python runs, until it is removed."""
        self._words: memoryview | None = None
        self._is_removed = False  # the file; a copy takes its place
        self._disclose: Callable[[Any], Any] = _as_it_is
        self._writing = threading.RLock()  # re-entrant: a signal handler may communicate

    def open(self, header: Header, disclose: Callable[[Any], Any], job: int = 0) -> str:
        """Begin a file for a new trace; return why there is none, "" where there is one.

        `header` is as it may be written, and names the file; `disclose` does that to descriptions.
        `job` tells ranks which of several live jobs of one key this is.
        """
        self.close()
        self._disclose = disclose
        why = "no folder is in memory (tmpfs)"
        for folder in memory_folders():
            try:
                self._begin(folder / state_name(header), header, job)
            except Exception as error:  # noqa: BLE001 - training goes on without
                self.close()
                reason = error.strerror if isinstance(error, OSError) else error
                why = f"{folder} cannot be written: {reason}"
            else:
                return ""
        return why

    def _begin(self, path: Path, header: Header, job: int) -> None:
        words = memoryview(_create(path)).cast("q")
        words[PID], words[RANK], words[WORLD_SIZE] = header.pid, header.rank, header.world_size
        words[PROCESS_START] = process_start(header.pid)
        words[STARTED_NS], words[STARTED_EPOCH_NS] = (
            header.started_monotonic_ns,
            header.started_epoch_ns,
        )
        words[BEAT_NS], words[STEP], words[JOB] = clock(), -1, job
        self.path, self._words, self._is_removed = path, words, False
        self._write(Line(header=msgspec.structs.replace(header, config={})))
        for word, number in list(self.words.items()):
            self._write(Line(word=(number, word)))
        self.issue, self.done, self._close = self.make_writers(words)
        words[0] = MAGIC
        with suppress(Exception):  # the state is as good without
            self.watch_starvation(path)
        path.chmod(0o400)  # a program that cuts the file would end this process, by SIGBUS

    def define(self, definition: Any) -> None:
        """Take note of a group or call site that the calls that follow refer to."""
        if self._words is None or not isinstance(definition, (Group, Site)):
            return
        try:
            self._write(_line(self._disclose(definition)))
        except Exception as error:  # noqa: BLE001 - the trace has it, and the hook goes on
            raise_if_of_signal_handler(error)

    def _write(self, line: Line) -> None:
        """Add a line if it fits: the trace has them all."""
        words = self._words
        if words is None:  # asked before the lock: in a forked child another thread may hold it
            return
        data = msgspec.json.encode(line) + b"\n"
        with self._writing:
            size = words[TEXT_BYTES]
            start = TEXT * WORD_BYTES + size
            if start + len(data) <= STACKS:
                words.cast("B")[start : start + len(data)] = data
                words[TEXT_BYTES] = size + len(data)

    def beat(self, scope: Scope) -> None:
        """Show that the process is alive, and where training stands."""
        words = self._words
        if words is not None:
            words[STEP], words[PHASE], words[BEAT_NS] = scope.step, self.words[scope.phase], clock()
            self._keep_visible(words)

    @property
    def data(self) -> bytes:
        """What the file has, or had before it was removed; nothing if no state is kept."""
        words = self._words
        return b"" if words is None else words.tobytes()

    def _keep_visible(self, words: memoryview) -> None:
        """Once the file has been removed, have a copy as of each sign of life in its place.

        A logout of the user removes it (RemoveIPC of systemd), or what tidies up after other jobs.
        """
        path = self.path
        if path is None or not (self._is_removed or not path.exists()):
            return
        with self._writing, suppress(OSError):
            if self._words is words:
                self._is_removed = True
                notes.put(path, self.data)

    def leave(self, time_ns: int) -> None:
        """Note when the program left its process group; 0: it has one again."""
        words = self._words
        if words is not None:
            words[LEFT_NS] = time_ns

    def expect_life(self, after_ns: int) -> None:
        """Have stacks written where there is no sign of life for so long; 0: never."""
        words = self._words
        if words is not None:
            words[STARVED_NS] = after_ns

    def forget(self) -> None:
        """Write no more, in a forked child: the file is the parent's."""
        self._close()
        self.issue = self.done = self._close = _nothing
        self._words = self.path = None

    def close(self) -> None:
        """Remove the file: the trace says it all. Threads may still be about to write to it."""
        path = self.path
        if path is None:  # also in a forked child, where another thread may hold the lock
            return
        with self._writing, suppress(OSError):
            self.forget()
            path.unlink()


class Words(dict[str, int]):
    """Operations, dtypes and phases by number; each new one is written to the file.

    They are numbered for the process: hooks that know theirs keep the number.
    """

    def __init__(self, tell: Callable[[Line], None]) -> None:
        super().__init__({"": 0})
        self._tell, self._numbers = tell, itertools.count(1)

    def __missing__(self, word: str) -> int:
        number = self.setdefault(word, next(self._numbers))
        self._tell(Line(word=(number, word)))
        return number


class Kinds(dict[str, int]):
    """An operation on each dtype, as `issue` takes it."""

    def __init__(self, words: Words, operation: str) -> None:
        super().__init__()
        self._words, self._operation = words, operation

    def __missing__(self, dtype: str) -> int:
        words = self._words
        kind = self[dtype] = words[self._operation] | words[dtype] << DTYPE_SHIFT
        return kind


def writers_in_c(hot: HotState, words: memoryview) -> tuple[Issue, Done, Close]:
    """Return what `writers` does, in C; its hooks write to the file, too, until it is closed."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(words))
    hot.open_state(words, address, RING, CALLS, PASSED, GROUPS, OLD, OLD_CALLS, LOST)
    return hot.issue, hot.done, hot.close_state


def writers(words: memoryview) -> tuple[Issue, Done, Close]:
    """Return `issue` and `done` for a file, and what ends them.

    Closures, because they run for each collective.
    """
    pack = struct.Struct(f"={CALL_WORDS}q").pack_into
    unpack = struct.Struct("=3q40xq").unpack_from  # ID, SEQ, WHERE, DONE_NS: one call, not four
    data, last_call, group_of = words.cast("B"), CALLS - 1, (1 << PEER_SHIFT) - 1
    call_words, ring, done_at = CALL_WORDS, RING, DONE_NS
    passed, groups, word_bytes = PASSED, GROUPS, WORD_BYTES
    old: dict[int, int] = {}  # id -> place
    newest = [0] * GROUPS  # as at `passed`

    def issue(
        number: int,
        seq: int,
        where: int,
        kind: int,
        nbytes: int,
        issue_ns: int,
        site: int,
        step: int,
        done_ns: int,
        thread: int,
    ) -> None:
        at = ring + (number & last_call) * call_words
        known, before, group, is_done = unpack(data, at * word_bytes)
        if is_done:
            group &= group_of
            if group < groups and newest[group] < before:
                newest[group] = words[passed + group] = before
        elif known:
            keep(at)
        pack(
            data, at * word_bytes,
            number, seq, where, kind, nbytes, issue_ns, site, step, done_ns, thread,
        )  # fmt: skip

    def keep(at: int) -> None:
        """Move a call in flight to a place of its own, before a later one takes its place."""
        for place in range(OLD, OLD + OLD_CALLS * CALL_WORDS, CALL_WORDS):
            if words[place + DONE_NS] or not words[place + ID]:
                old.pop(words[place + ID], None)
                words[place : place + CALL_WORDS] = words[at : at + CALL_WORDS]
                old[words[at + ID]] = place
                return
        words[LOST] += 1

    def done(number: int, time_ns: int) -> None:
        at = ring + (number & last_call) * call_words
        if words[at] == number:
            words[at + done_at] = time_ns
        elif number in old:
            words[old.pop(number) + done_at] = time_ns

    return issue, done, _nothing


def _create(path: Path) -> mmap.mmap:
    """Return a new file in memory, for this user only, of which every page is there.

    Raises:
        OSError: it cannot be made, or the memory does not suffice.
    """
    with suppress(FileNotFoundError):
        path.unlink()  # of a process that had our number, or of the world before this one
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    try:
        os.posix_fallocate(file, 0, SIZE_BYTES)
        return mmap.mmap(file, SIZE_BYTES)
    except (OSError, ValueError):
        path.unlink()
        raise
    finally:
        os.close(file)


def _line(definition: Group | Site) -> Line:
    if isinstance(definition, Site):
        return Line(site=definition)
    ranks = definition.ranks
    if len(ranks) <= _MOST_RANKS:
        return Line(group=definition)
    span = (ranks[0], ranks[1] - ranks[0])
    is_regular = ranks == [*range(ranks[0], ranks[-1] + 1, max(span[1], 1))]
    group = msgspec.structs.replace(definition, ranks=[])
    return Line(group=group, span=span if is_regular else None)


def _as_it_is(definition: Any) -> Any:
    return definition
