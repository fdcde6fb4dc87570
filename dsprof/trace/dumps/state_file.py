"""The live state of a rank: a small file in memory that outlives its process, however that ends.

Words of 8 bytes in the byte order of the machine; docs/reference/trace-format.md describes them.
Whoever reads may meet a file that is being written, or one that somebody else made: every number is
checked, and what does not fit is skipped.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import msgspec

from dsprof.environment.machine import boot_id
from dsprof.errors import TraceError
from dsprof.files import notes
from dsprof.files.decoding import UNDECODABLE
from dsprof.trace.lines import fits
from dsprof.trace.schema import LARGEST_WORLD, Group, Header, Site

STACKS = 1 << 16
"""The first byte of stacks of a rank whose Python does not run, as faulthandler writes them."""

SIZE_BYTES = STACKS + (1 << 15)
WORD_BYTES = 8
MAGIC = int.from_bytes(b"dsprof\0\2", "little")

# Numbers of words.
PID, PROCESS_START, RANK, WORLD_SIZE, STARTED_NS, STARTED_EPOCH_NS = range(1, 7)
BEAT_NS, STEP, PHASE, TEXT_BYTES, LOST, STARVED_NS, STACKS_NS, JOB, LEFT_NS = range(7, 16)

CALL_WORDS = 10
ID, SEQ, WHERE, KIND, NBYTES, ISSUE_NS, SITE, CALL_STEP, DONE_NS, THREAD = range(CALL_WORDS)

OLD_CALLS, OLD = 32, 64  # how many, and the first word
GROUPS, PASSED = 512, OLD + OLD_CALLS * CALL_WORDS
CALLS, RING = 256, PASSED + GROUPS
TEXT = RING + CALLS * CALL_WORDS

SILENT_S = 10.0
"""A living process shows that it lives at least every 5 s."""

UNFOLLOWED = 1
"""As `DONE_NS`: the completion will not be seen, as on a device."""

PEER_SHIFT, DTYPE_SHIFT = 32, 16
"""The lower half of `WHERE` is the group; the lower part of `KIND` is the operation."""

_LOW, _WORD = (1 << PEER_SHIFT) - 1, (1 << DTYPE_SHIFT) - 1
_LARGEST = 1 << 62
_MOST_RANKS = 32 * SIZE_BYTES  # of all groups, as of a trace: a line of 40 bytes may name a million
_TEXT_START = TEXT * WORD_BYTES


class StateCall(msgspec.Struct, frozen=True):
    """A collective that was called lately, or a while ago and is still in flight.

    `done_ns` is 0 in flight, negative where a wait for it failed at that time.
    """

    id: int
    group: int
    seq: int  # n-th collective of the group; n-th of (peer, direction) for send and recv
    op: str
    dtype: str
    nbytes: int
    issue_ns: int
    site: int
    step: int
    thread: int
    peer: int
    is_pair: bool
    done_ns: int

    @property
    def is_in_flight(self) -> bool:
        """Whether it was issued and not seen to end."""
        return self.done_ns == 0


class Line(msgspec.Struct, omit_defaults=True):
    """One line of the text: what is said first, and what numbers refer to."""

    header: Header | None = None
    group: Group | None = None
    site: Site | None = None
    word: tuple[int, str] | None = None  # its number, and it
    span: tuple[int, int] | None = None  # of a large group: its first rank, and how far to the next


class RankState(msgspec.Struct):
    """The state of a rank at `beat_ns` or later; times are of its monotonic clock."""

    header: Header
    process_start: int  # field 22 of /proc/PID/stat: with the pid it names the process
    beat_ns: int
    step: int  # the one it was in; -1 before the first
    phase: str
    calls: list[StateCall]  # by id
    passed: dict[int, int]  # group -> its last collective that is complete and not in `calls`
    lost: int  # calls in flight that there was no place for
    groups: dict[int, Group]
    sites: dict[int, Site]
    stacks_ns: int = 0  # when the threads were looked at, because no Python ran since `beat_ns`
    stacks: str = ""
    left_ns: int = 0  # when the program destroyed its process group; 0: it did not, or unknown

    @property
    def in_flight(self) -> list[StateCall]:
        """The collectives that were issued and not seen to end, the oldest first."""
        return [call for call in self.calls if call.is_in_flight]


def run_prefix(run_key: str) -> str:
    """Return how the names of the files of a run of this user begin."""
    run = blake2b(run_key.encode(errors="replace"), digest_size=6).hexdigest()
    return f"dsprof-{os.getuid()}-{run}"


def state_name(header: Header) -> str:
    """Return the name of the file of a process of this user: containers may share the memory."""
    of_process = f"{header.rank}-{header.pid_namespace}-{header.pid}"
    return f"{run_prefix(header.run_key)}-{of_process}.state"


def state_of(header: Header) -> str:
    """Return the name of the file of the process that wrote a trace; "" if that is no name."""
    name = header.state_file or state_name(header)
    return name if name == os.path.basename(name) and name.isprintable() else ""


def kept_name(header: Header) -> str:
    """Return the name of a copy in the folder of traces: in containers each start may be PID 1."""
    return f"state-rank{header.rank:05d}-{header.pid}-{process_digest(header).hex()}.bin"


def memory_folders() -> Iterator[Path]:
    """Yield the folders of this machine that are in memory, the best one first.

    A page of a file on a disk that is full, or on a file system that is gone, cannot be written:
    the process would get a SIGBUS.
    """
    named = (os.environ.get(name, "") for name in ("XDG_RUNTIME_DIR", "TMPDIR"))
    devices = _memory_devices()
    for folder in dict.fromkeys(map(Path, ("/dev/shm", *filter(None, named), "/tmp"))):
        with suppress(OSError):
            if os.stat(folder).st_dev in devices:
                yield folder


def _memory_devices() -> set[int]:
    found = set[int]()
    with suppress(OSError), open("/proc/self/mountinfo", errors="replace") as mounts:
        for line in mounts:
            mount, _, source = line.partition(" - ")
            if source.split(" ", 1)[0] in ("tmpfs", "ramfs"):
                major, minor = mount.split(" ", 3)[2].split(":")
                found.add(os.makedev(int(major), int(minor)))
    return found


def find_state(header: Header, folder: Path) -> RankState | None:
    """Return the state of the process that wrote a trace: the live one, or a copy beside it."""
    copies = [folder / kept_name(header)]
    if (name := state_of(header)) and header.boot_id == boot_id():
        copies = [*(place / name for place in memory_folders()), *copies]
    for path in copies:
        with suppress(TraceError, OSError):
            state = read_state(path)
            if process_of(state.header) == process_of(header):
                return state
    return None


def remove_live_state(header: Header) -> None:
    """Remove from memory the state of a process that is gone."""
    name = state_of(header)
    for path in (place / name for place in memory_folders() if name):
        with suppress(TraceError, OSError):
            if process_of(read_state(path).header) == process_of(header):
                path.unlink()


def process_of(header: Header) -> tuple[str, int, int, int]:
    """Return what tells the recording of a process from any other."""
    return header.run_key, header.rank, header.pid, header.started_monotonic_ns


def process_digest(header: Header) -> bytes:
    """Return 4 bytes that tell the recording of a process from any other."""
    return blake2b(repr(process_of(header)).encode(), digest_size=4).digest()


def read_state(path: Path) -> RankState:
    """Read the state of a rank, as far as it makes sense.

    Raises:
        TraceError: it cannot be read, or is no state.
    """
    return parsed_state(read_bytes(path), path)


def parsed_state(data: bytes, path: Path) -> RankState:
    """Return what the bytes of a file say.

    Raises:
        TraceError: they are no state.
    """
    if len(data) != SIZE_BYTES:
        raise TraceError(f"{path}: not a state: it has to be a file of {SIZE_BYTES:,} bytes")
    words = struct.unpack_from(f"={TEXT}q", data)
    if words[0] != MAGIC or not 0 <= words[TEXT_BYTES] <= STACKS - _TEXT_START:
        raise TraceError(f"{path}: not a state of this version of dsprof")
    text = _Text(data[_TEXT_START : _TEXT_START + words[TEXT_BYTES]])
    header = text.header
    told = (header.pid, header.rank, header.world_size) if header else ()
    if header is None or told != (words[PID], words[RANK], words[WORLD_SIZE]):
        raise TraceError(f"{path}: damaged: it does not say whose state it is")
    if not 0 <= header.rank < header.world_size <= LARGEST_WORLD:
        raise TraceError(f"{path}: damaged: rank {header.rank} of {header.world_size} cannot be")
    places = [*range(OLD, PASSED, CALL_WORDS), *range(RING, TEXT, CALL_WORDS)]
    calls = [_call(words[at : at + CALL_WORDS], text.words) for at in places]
    by_id = {call.id: call for call in calls if call is not None}
    has_stacks = words[STACKS_NS] > words[BEAT_NS]
    passed = enumerate(words[PASSED : PASSED + GROUPS])
    return RankState(
        header=header,
        process_start=words[PROCESS_START],
        beat_ns=min(max(words[BEAT_NS], 0), _LARGEST),
        step=min(max(words[STEP], -1), _LARGEST),
        phase=text.words.get(words[PHASE], ""),
        calls=[by_id[number] for number in sorted(by_id)],
        passed={group: seq for group, seq in passed if 0 < seq < _LARGEST},
        lost=max(words[LOST], 0),
        groups=text.groups,
        sites=text.sites,
        stacks_ns=min(words[STACKS_NS], _LARGEST) if has_stacks else 0,
        stacks=_stacks(data) if has_stacks else "",
        left_ns=min(max(words[LEFT_NS], 0), _LARGEST),
    )


class Sign(NamedTuple):
    """Whose a state is, since when, and when it last showed life."""

    rank: int
    world_size: int
    pid: int
    process_start: int
    started_ns: int
    beat_ns: int
    job: int  # of live jobs on this machine no other has it; 0: unknown


def read_sign(path: Path) -> Sign:
    """Read no more of a state than that.

    Raises:
        TraceError: it is none, or cannot be read.
    """
    words = struct.unpack(f"={JOB + 1}q", read_bytes(path, (JOB + 1) * WORD_BYTES))
    if words[0] != MAGIC:
        raise TraceError(f"{path}: not a state of this version of dsprof")
    numbers = (RANK, WORLD_SIZE, PID, PROCESS_START, STARTED_NS, BEAT_NS, JOB)
    return Sign(*(words[number] for number in numbers))


def read_bytes(path: Path, size: int = SIZE_BYTES) -> bytes:
    """Read the beginning of a state, or all of it; no link is followed.

    Raises:
        TraceError: it is none, or cannot be read.
    """
    try:
        data = notes.read_if(path, size, lambda status: status.st_size == SIZE_BYTES)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) != size:
        raise TraceError(f"{path}: not a state: it has to be a file of {SIZE_BYTES:,} bytes")
    return data


def _call(words: tuple[int, ...], names: dict[int, str]) -> StateCall | None:
    """Return the call in a place; None where there is none, or it is just being written."""
    number, where, kind = words[ID], words[WHERE], words[KIND]
    if not words[THREAD] or number <= 0 or where < 0 or kind < 0:
        return None
    if any(abs(word) >= _LARGEST for word in words[: CALL_WORDS - 1]) or words[NBYTES] < 0:
        return None
    done_ns = words[DONE_NS]
    return StateCall(
        id=number,
        group=where & _LOW,
        seq=abs(words[SEQ]),
        op=names.get(kind & _WORD, ""),
        dtype=names.get(kind >> DTYPE_SHIFT, ""),
        nbytes=words[NBYTES],
        issue_ns=max(words[ISSUE_NS], 0),
        site=words[SITE],
        step=words[CALL_STEP],
        thread=words[THREAD],
        peer=(where >> PEER_SHIFT) - 1,
        is_pair=words[SEQ] < 0,
        done_ns=done_ns,
    )


def _stacks(data: bytes) -> str:
    return data[STACKS:].rstrip(b"\0").decode("ascii", errors="replace")


class _Text:
    """Parse the lines of the text; those that cannot be read are skipped."""

    def __init__(self, text: bytes) -> None:
        self.header: Header | None = None
        self.groups: dict[int, Group] = {}
        self.sites: dict[int, Site] = {}
        self.words: dict[int, str] = {}
        self._most_ranks = _MOST_RANKS
        for line in _lines(text.split(b"\n")):
            self.header = self.header or line.header
            if line.group is not None:
                self.groups[line.group.id] = self._whole(line.group, line.span)
            if line.site is not None:
                self.sites[line.site.id] = line.site
            if line.word is not None:
                self.words |= [line.word]

    def _whole(self, group: Group, span: tuple[int, int] | None) -> Group:
        if span is None or not 0 < span[1] * group.size <= LARGEST_WORLD or span[0] < 0:
            return group
        ranks = range(span[0], span[0] + span[1] * group.size, span[1])
        if len(ranks) > self._most_ranks:
            return group
        self._most_ranks -= len(ranks)
        return msgspec.structs.replace(group, ranks=list(ranks))


def _lines(lines: Iterable[bytes]) -> Iterator[Line]:
    for line in lines:
        with suppress(*UNDECODABLE):
            found = msgspec.json.decode(line, type=Line)
            if fits(found):
                yield found
