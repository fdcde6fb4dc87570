"""A rank's dump of itself when it made no progress: written once, while it stands.

A dump is a hint, and no verdict: a rank that is only slow writes one, too.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import msgspec

from dsprof.errors import TraceError
from dsprof.files import notes
from dsprof.files.decoding import UNDECODABLE
from dsprof.files.inputs import is_file, read_input
from dsprof.files.ownership import foreign_link
from dsprof.trace.dumps.state_file import RankState, process_of
from dsprof.trace.lines import fits
from dsprof.trace.schema import Header, MemorySample

LARGEST_BYTES = 4 << 20

_OPEN = r"(?a)ESTABLISHED port (\d{1,5}) to (\d{1,5}), (\d{1,15}) unsent, (\d{1,15}) unread"
_AT_STORE = (
    r"[/\\]torch[/\\]distributed[/\\].*\.py:\d+ (?P<call>new_group|init_process_group|rendezvous"
    r"|_store_based_barrier|split_group)$"
)

FILE_WAITS = (
    r"pipe_|fifo|wait_for_partner|fuse|request_wait_answer|nfs|ceph|lustre|^ll_|io_schedule"
    r"|folio_wait|wait_on_page"
)
"""Functions of the kernel that wait for a pipe, a disk or a file system."""


class ThreadStack(msgspec.Struct, frozen=True):
    """The calls of a thread in Python, the innermost one first: `file:line function`."""

    name: str
    frames: tuple[str, ...]


class ProcessState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process as its kernel shows it; what it does not show is absent."""

    state: str = ""  # letter of /proc/PID/stat; "X": there is no such process
    waits_in: str = ""  # function of the kernel (wchan)
    tracer: int = 0  # pid of a debugger
    cpu_ns: int = 0  # of its first thread, those of autograd, and its children
    io_bytes: int = 0  # read and written, by any call
    thread_io_bytes: int = 0  # the same of its first thread
    oom_kills: int | None = None  # of its cgroup, ever
    sockets: tuple[str, ...] = ()  # TCP: "state local-remote unsent/unread bytes"


class Connection(msgspec.Struct, frozen=True):
    """One end of a TCP connection, and what waits in it."""

    port: int
    peer_port: int
    unsent_bytes: int
    unread_bytes: int


class HangDump(msgspec.Struct, omit_defaults=True):
    """One rank at the moment at which its watchdog noticed that nothing went on."""

    header: Header
    noticed_epoch_ns: int
    noticed_ns: int  # of its monotonic clock
    reason: str
    quiet_ns: int = 0  # since anything went on
    state: RankState | None = None  # what is in flight, if a live state is kept
    threads: list[ThreadStack] = []  # that which trains first
    native_stacks: str = ""
    process: ProcessState = ProcessState()
    memory: MemorySample | None = None
    holds_interpreter: bool = False  # a C call kept Python from running
    is_active: bool = False  # it computed, read or wrote while it was looked at
    is_own: bool = True  # of the rank itself; else of one that saw it on its node
    lost_store: str = ""  # host and port of a store that it waits for, and that does not answer


def store_call(threads: list[ThreadStack]) -> str:
    """Return in which call the thread that trains waits for all ranks at the store; "": in none."""
    frames = threads[0].frames if threads else ()
    found = [call["call"] for frame in frames if (call := re.search(_AT_STORE, frame))]
    return found[-1] if found else ""


def connections(process: ProcessState) -> tuple[Connection, ...]:
    """Return the open connections of a process."""
    found = filter(None, (re.fullmatch(_OPEN, socket) for socket in process.sockets))
    return tuple(Connection(*map(int, one.groups())) for one in found)


def dump_path(folder: Path, rank: int) -> Path:
    """Return where the dump of a rank is."""
    return folder / f"hang-rank{rank:05d}.json"


def write_dump(folder: Path, dump: HangDump) -> Path:
    """Write a dump, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    path = dump_path(folder, dump.header.rank)
    notes.put(path, msgspec.json.format(msgspec.json.encode(dump), indent=1), mode=0o644)
    return path


def read_dump(path: Path) -> HangDump:
    """Read a dump.

    Raises:
        TraceError: it cannot be read, or is none.
    """
    try:
        dump = msgspec.json.decode(read_input(path, LARGEST_BYTES), type=HangDump)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    except UNDECODABLE as error:
        raise TraceError(f"{path}: no dump of a hang: {error}") from None
    if not fits(dump):
        raise TraceError(f"{path}: no dump of a hang: a number is beyond 64 bits")
    return dump


def find_dump(header: Header, folder: Path) -> HangDump | None:
    """Return the dump of the process that wrote a trace; None where it left none."""
    path = dump_path(folder, header.rank)
    with suppress(TraceError, OSError):
        if is_file(path) and not foreign_link(path):
            dump = read_dump(path)
            if process_of(dump.header) == process_of(header):
                return dump
    return None
