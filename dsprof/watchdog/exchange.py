"""How ranks tell each other where they are, once one of them waits too long.

Ranks of a node see each other's live states and processes. Others meet at the store of the default
group, over a connection of our own, and in the folder of traces. Whatever does not answer in time
is left alone, in a thread that nobody waits for.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dsprof.environment.processes import GONE
from dsprof.errors import TraceError
from dsprof.recording.live_state import keep_states_of_the_dead
from dsprof.trace.dumps.hang_dump import HangDump, dump_path, read_dump, write_dump
from dsprof.trace.dumps.state_file import RankState, memory_folders, read_state, state_name
from dsprof.trace.schema import Header

T = TypeVar("T")

_PATIENCE_S = 3.0
_LARGEST_BYTES = 1 << 20
_MOST_RANKS = 4096


class Exchange:
    """Asks other ranks of a run, tells them, and looks at those on this node."""

    def __init__(self, header: Header, folder: Path) -> None:
        self._header, self._folder = header, folder
        self._prefix = f"dsprof/hang/{header.run_key}"
        self._store: Any = None
        self._is_lost = False  # the store: torch complains of each further attempt
        self._answered_ns = time.time_ns()
        memory = next(memory_folders(), Path("/dev/null"))
        self._question = str(memory / f"{self._run}-asked.state")  # its time is that of asking

    @property
    def _run(self) -> str:
        return state_name(self._header.run_key, 0, 0).rsplit("-", 2)[0]

    def ask(self) -> None:
        """Ask all ranks to tell where they are."""
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(self._question, flags, 0o600))
            now_ns = time.time_ns()  # the kernel's own is up to 10 ms old
            os.utime(self._question, ns=(now_ns, now_ns), follow_symlinks=False)
        self._with_store(lambda store: store.set(f"{self._prefix}/asked", str(time.time_ns())))

    def is_asked(self, *, far: bool) -> bool:
        """Say whether a rank has asked since the last answer: of this node, or any if `far`."""
        asked_ns = 0
        with suppress(OSError):
            asked_ns = os.stat(self._question, follow_symlinks=False).st_mtime_ns
        if far and asked_ns <= self._answered_ns:
            asked_ns = int(self._with_store(self._take_question) or 0)
        return asked_ns > self._answered_ns

    def _take_question(self, store: Any) -> bytes:
        key = f"{self._prefix}/asked"
        return bytes(store.get(key))[:20] if store.check([key]) else b""

    def tell(self, dump: HangDump) -> None:
        """Answer: in the folder, and at the store."""
        self._answered_ns = time.time_ns()
        self._publish(dump)

    def _publish(self, dump: HangDump) -> None:
        _within(lambda: write_dump(self._folder, dump))
        data = msgspec.json.encode(dump)
        if len(data) <= _LARGEST_BYTES:
            self._with_store(lambda store: store.set(self._key(dump.header.rank), data))

    def _key(self, rank: int) -> str:
        return f"{self._prefix}/{rank}"

    def gather(self, since_ns: int, seen: dict[int, HangDump]) -> dict[int, HangDump]:
        """Return where ranks are: by what they said since a time, else by what this node shows."""
        told = dict(_within(lambda: [*self._in_folder(since_ns)]) or ())
        told |= self._with_store(lambda store: dict(self._at_store(store, since_ns))) or {}
        for rank, dump in seen.items():
            if rank not in told:
                told[rank] = dump
                self._publish(dump)  # it cannot speak for itself
        if any(dump.process.state == GONE for dump in seen.values()):
            _within(lambda: keep_states_of_the_dead(self._header.run_key, self._folder))
        return told

    def _in_folder(self, since_ns: int) -> Iterator[tuple[int, HangDump]]:
        for rank in range(min(self._header.world_size, _MOST_RANKS)):
            with suppress(TraceError, OSError):
                path = dump_path(self._folder, rank)
                if path.stat().st_mtime_ns >= since_ns:
                    yield from self._fitting(read_dump(path), since_ns)

    def _at_store(self, store: Any, since_ns: int) -> Iterator[tuple[int, HangDump]]:
        for rank in range(min(self._header.world_size, _MOST_RANKS)):
            if store.check([self._key(rank)]):
                data = bytes(store.get(self._key(rank)))
                with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    if len(data) <= _LARGEST_BYTES:
                        yield from self._fitting(msgspec.json.decode(data, type=HangDump), since_ns)

    def _fitting(self, dump: HangDump, since_ns: int) -> Iterator[tuple[int, HangDump]]:
        is_ours = dump.header.run_key == self._header.run_key
        if is_ours and dump.noticed_epoch_ns >= since_ns:
            yield dump.header.rank, dump

    def on_node(self) -> Iterator[RankState]:
        """Yield the live states of this run's ranks on this node."""
        for memory in memory_folders():
            for path in memory.glob(f"{self._run}-*.state"):
                with suppress(TraceError, OSError):
                    state = read_state(path)
                    if state.header.run_key == self._header.run_key:
                        yield state

    def close(self) -> None:
        """Take the question back."""
        with suppress(OSError):
            os.unlink(self._question)

    def _with_store(self, use: Callable[[Any], T]) -> T | None:
        if self._is_lost:
            return None
        answers = _within(lambda: [use(self._connected())])
        self._is_lost = answers is None
        return answers[0] if answers else None

    def _connected(self) -> Any:
        """Return a connection of our own to the store that the default group uses.

        Raises:
            Exception: there is none, or it cannot be reached.
        """
        if self._store is None:
            dist = sys.modules["torch.distributed"]
            store = dist.distributed_c10d._get_default_store()
            while isinstance(store, dist.PrefixStore):
                store = store.underlying_store
            self._store = dist.TCPStore(
                store.host,
                store.port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=_PATIENCE_S),
            )
        return self._store


def _within(ask: Callable[[], T]) -> T | None:
    """Return the answer; None if it fails, or does not come in time."""
    answers: list[T] = []

    def run() -> None:
        with suppress(Exception):
            answers.append(ask())

    thread = threading.Thread(target=run, name="dsprof-exchange", daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    return answers[0] if answers else None
