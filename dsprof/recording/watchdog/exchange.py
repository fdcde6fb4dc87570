"""How ranks tell each other where they are, once one of them waits too long.

Ranks of a node see each other's live states, and leave answers in the memory of the node. One of
them, the leader, sums them up for other nodes: at the store of the default group, over a connection
of dsprof's own, and in the folder of traces. Whatever does not answer in time is ignored, in a
thread that is not waited for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from dsprof.environment.launchers import count
from dsprof.environment.processes import on_monotonic_ns, process_start
from dsprof.errors import TraceError
from dsprof.files.decoding import UNDECODABLE
from dsprof.recording.group_store import (
    Fail,
    connect,
    default_store,
    name_of_run,
    number_of_run,
    within,
)
from dsprof.recording.watchdog.boards import Answers, Board, FileBoard, StoreBoard
from dsprof.recording.watchdog.reports import packed, unpacked
from dsprof.trace.dumps.hang_dump import HangDump, write_dump
from dsprof.trace.dumps.kept_states import keep_states_of_the_dead
from dsprof.trace.dumps.state_file import (
    RankState,
    Sign,
    memory_folders,
    process_digest,
    read_sign,
    read_state,
    run_prefix,
)
from dsprof.trace.schema import Header

T = TypeVar("T")

_VERDICT = "verdict"


class Conclusion(msgspec.Struct, frozen=True):
    """The conclusion of a leader, for the ranks that did not look themselves."""

    text: str
    is_stuck: bool
    ranks: tuple[int, ...]  # those that `text` names
    speaker: int  # the rank that speaks for all
    noticed_epoch_ns: int
    processes: bytes = b""  # that it was made of, 4 bytes each: those of another start differ

    def is_of(self, header: Header) -> bool:
        """Say whether this process is one of those that it was made of."""
        known = (self.processes[at : at + 4] for at in range(0, len(self.processes), 4))
        return process_digest(header) in known


class Exchange:
    """Asks other ranks of a run, tells them, and looks at those on this node."""

    def __init__(
        self, header: Header, folder: Path, note: Callable[[str], object], fail: Fail
    ) -> None:
        self._header, self._folder, self._note = header, folder, note
        self._within = partial(within, fail=fail)
        self._born_ns = on_monotonic_ns(process_start(os.getpid()))
        self._run = run_prefix(header.run_key)
        self._job = number_of_run(header)
        memory, name = next(memory_folders(), None), name_of_run(header)
        near = (f"dsprof-{os.getuid()}-{name}-", ".state", header.started_epoch_ns)
        self._near = FileBoard(memory, *near) if memory else None
        prefix = f".{name}-"
        self._shared = FileBoard(folder, prefix, ".hang", _changed_ns(folder))
        self._store = StoreBoard(self._connected, f"dsprof/hang/{header.run_key}")
        self._connection: Any = None
        size = count(os.environ.get("LOCAL_WORLD_SIZE", ""))
        self.is_alone = size == header.world_size  # all ranks are on this node
        self._lost: set[Board] = set()  # what did not answer
        self._seen: dict[Board, str] = {}  # the last question of each
        self._read: dict[Board, Answers] = {}  # in this inquiry, and before it
        self._before: dict[Board, Answers] = {}
        self._said: dict[Board, set[str]] = {}
        self._heard: set[bytes] = set()  # verdicts: what others found, and what this rank did

    # -- questions -------------------------------------------------------------------------------

    def is_asked(self, where: Literal["here", "in_folder", "anywhere"]) -> bool:
        """Say whether somebody asked since the last inquiry."""
        boards = self._boards(far=where == "anywhere")
        if where == "in_folder" and not self.is_alone:
            boards.append(self._shared)
        return any(self._is_new(board) for board in boards)

    def begin(self) -> None:
        """Begin an inquiry, which ends with `end`."""
        self.is_alone = len({sign.rank for sign in self.signs()}) >= self._header.world_size
        self._lost.discard(self._shared)

    def ask(self, *, far: bool) -> None:
        """Ask the ranks of this node to tell where they are, or the other nodes if `far`."""
        for board in self._far() if far else self._boards(far=False):
            self._on(board, lambda board: board.ask())

    def end(self) -> None:
        """Questions and answers of earlier rounds count no more, as long as the silence lasts."""
        self._heard |= {said.get(_VERDICT, b"") for said in self._read.values()}
        self._before, self._read = self._before | self._read, {}
        for board in [*self._boards(far=False), *self._said]:
            self._is_new(board)

    def withdraw(self) -> None:
        """Take back what this rank said: training goes on."""
        for board, names in self._said.items():
            for name in names:
                self._on(board, lambda board, name=name: board.post(name, b""))  # type: ignore[misc]
        self._said.clear()
        self._before.clear()
        self._heard.clear()

    def _is_new(self, board: Board) -> bool:
        question = self._on(board, lambda board: board.question()) or ""
        is_new = question not in ("", self._seen.get(board, ""))
        self._seen[board] = question
        return is_new

    def _boards(self, *, far: bool = True) -> list[Board]:
        """Return the board of this node first, and those of all nodes if there are others."""
        near: list[Board] = [] if self._near is None else [self._near]
        return [*near, self._store, self._shared] if far and not self.is_alone else near

    def _on(self, board: Board, use: Callable[[Board], T]) -> T | None:
        """Return what comes of using a board; None: it fails, or does not answer in time."""
        if board in self._lost:
            return None
        if board is self._near:  # memory does not keep anybody waiting
            with suppress(OSError):
                return use(board)
            return None
        answers = self._within(lambda: [use(board)])
        if answers is None:
            self._lost.add(board)  # torch complains of each further attempt
        return answers[0] if answers else None

    # -- answers ---------------------------------------------------------------------------------

    def tell(self, dump: HangDump) -> None:
        """Answer, to this node and in the folder of traces."""
        name, data = str(dump.header.rank), packed([dump])
        self._post(self._boards(far=False), name, data)
        self.write(dump)

    def write(self, dump: HangDump) -> None:
        """Write a dump to the folder of traces."""
        self._within(lambda: write_dump(self._folder, dump))

    def told_here(self, since_ns: int) -> dict[int, HangDump]:
        """Return what ranks of this node have told since a time of its monotonic clock."""
        told = self._fresh(self._boards(far=False))
        return {rank: dump for rank, dump in told.items() if dump.noticed_ns >= since_ns}

    def tell_nodes(self, dumps: Mapping[int, HangDump]) -> None:
        """Sum up this node for others; write down what ranks cannot tell themselves."""
        name, data = str(self._header.rank), packed(dumps.values())
        self._post(self._far(), name, data)
        self._within(lambda: self._keep([dump for dump in dumps.values() if not dump.is_own]))

    def _keep(self, dumps: Iterable[HangDump]) -> None:
        for dump in dumps:
            write_dump(self._folder, dump)
        keep_states_of_the_dead(self._header.run_key, self._folder)

    def told_by_nodes(self) -> dict[int, HangDump]:
        """Return what leaders have told of the ranks of their nodes since `begin`."""
        return self._fresh(self._far())

    def _far(self) -> list[Board]:
        return [board for board in self._boards() if board is not self._near]

    def _fresh(self, boards: Iterable[Board]) -> dict[int, HangDump]:
        """Return what is said since the last inquiry ended, the latest of each rank."""
        found: dict[int, HangDump] = {}
        for board in boards:
            before, said = (
                self._before.get(board, {}),
                self._on(board, lambda board: board.read()) or {},
            )
            self._read[board] = said
            for name, data in said.items():
                if data != before.get(name) and name != _VERDICT:
                    for dump in unpacked(data, self._header.run_key):
                        known = found.setdefault(dump.header.rank, dump)
                        if dump.noticed_epoch_ns > known.noticed_epoch_ns:
                            found[dump.header.rank] = dump
        return found

    # -- conclusions -----------------------------------------------------------------------------

    def conclude(self, found: Conclusion, *, far: bool) -> None:
        """Tell what was found: to this node, or to all if `far`."""
        data = msgspec.json.encode(found)
        self._heard.add(data)  # in the next inquiry it is no answer
        self._post(self._boards(far=far), _VERDICT, data)

    def _post(self, boards: Iterable[Board], name: str, data: bytes) -> None:
        for board in boards:
            self._on(board, lambda board: board.post(name, data))
            self._said.setdefault(board, set()).add(name)

    def conclusion(self, *, far: bool) -> Conclusion | None:
        """Return what a leader has found and this rank not heard: of this node, or any if `far`."""
        for board in self._boards(far=far):
            data = self._on(board, lambda board: board.read_one(_VERDICT)) or b""
            if data and data not in self._heard:
                self._heard.add(data)
                with suppress(*UNDECODABLE):
                    found = msgspec.json.decode(data, type=Conclusion)
                    if found.is_of(self._header):
                        return found
                    self._note(
                        "Ignored a verdict that was made without this rank: its answer came too "
                        "late, or processes of another start still run. End those."
                    )
        return None

    # -- this node -------------------------------------------------------------------------------

    def on_node(self) -> Iterator[RankState]:
        """Yield the live states of this run's ranks on this node."""
        for _, path in self._states():
            with suppress(TraceError, OSError):
                state = read_state(path)
                if state.header.run_key == self._header.run_key:
                    yield state

    def signs(self) -> Iterator[Sign]:
        """Yield signs of life of this run's ranks on this node: it is little that is read."""
        for sign, _ in self._states():
            yield sign

    def _states(self) -> Iterable[tuple[Sign, Path]]:
        """Return the state of each rank: the newest, and none that is of an earlier start."""
        found: dict[int, tuple[Sign, Path]] = {}
        for path in (one for memory in memory_folders() for one in self._in(memory)):
            with suppress(TraceError, OSError):
                sign = read_sign(path)
                known = found.get(sign.rank)
                is_newest = known is None or sign.process_start > known[0].process_start
                is_ours = sign.job in (0, self._job)
                if is_ours and is_newest and sign.beat_ns >= self._born_ns:
                    found[sign.rank] = sign, path
        return found.values()

    def _in(self, memory: Path) -> Iterator[Path]:
        with suppress(OSError):  # the program may have used up its descriptors, for now
            yield from memory.glob(f"{self._run}-[0-9]*-*.state")

    def close(self) -> None:
        """Take back what is of no use to others any more."""
        for board in (self._near, self._shared):
            if board is not None:
                board.close()

    # -- the store -------------------------------------------------------------------------------

    def lost_store(self) -> str:
        """Return where a store should be that does not answer; "": it does, or there is none."""
        if (store := default_store()) is None:
            return ""
        is_there = self._within(lambda: [connect(store)]) is not None
        return "" if is_there else f"{store.host}:{store.port}"

    def _connected(self) -> Any:
        """Return a connection of our own to the store that the default group uses.

        Raises:
            OSError: there is none.
            RuntimeError: it cannot be reached.
        """
        if self._connection is None:
            if (store := default_store()) is None:
                raise OSError("the default group has no store with a server")
            self._connection = connect(store)
        return self._connection


def _changed_ns(folder: Path) -> int:
    """Return when a folder changed last, by its own clock: all files in it by now are older."""
    with suppress(OSError):
        return os.stat(folder).st_mtime_ns
    return 0
