"""The files of a rolling recording.

A rank has a book, `trace.rank00003.json`: header, definitions, trailer. Beside it are two tails
with the newest lines, and what was copied out of them: `.kept.gz` (details of steps), `.steps.gz`
(sums of single steps) and `.series.gz` (roll-ups). Packed files are gzip members, each with its
checksum, one after the other: what a killed process was just writing is the last one. The head of
each says how long it is and of which steps, so that those of some steps are found without the rest.
`.profile.gz` is what torch.profiler recorded: a file of its own for those that read.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dsprof.files.inputs import open_input
from dsprof.files.ownership import foreign_link
from dsprof.trace.schema import Header
from dsprof.trace.source import is_readable
from dsprof.trace.writing.disk import OwnFile, append, give_up_lines, has_room

TAILS = (".tail0", ".tail1")
KEPT, STEPS, SERIES = ".kept.gz", ".steps.gz", ".series.gz"
STATE = ".state"
"""In an archive: the state of a process that was killed."""
PARTS = (*TAILS, KEPT, STEPS, SERIES, STATE)
_READ = (KEPT, SERIES, *TAILS)
PROFILE = ".profile.gz"
ARCHIVE = ".earlier.zip"
"""What is over, of each rank."""
ALWAYS = "always"
"""The mode of a rolling recording."""

_CLOSING = b"\n]\n"
_COPIED_BYTES = 1 << 20
_WRITTEN_BYTES = 1 << 18
_LEVEL = 3  # 15 % larger than at 6, in a third of the time


def part_of(book: Path, ending: str) -> Path:
    """Return the path of a part."""
    return book.with_name(book.name.removesuffix(".json") + ending)


def copy_of(path: Path) -> Path:
    """Return the file that is to replace another one; a killed process may leave it."""
    return path.with_name(f".{path.name}")


def is_rolling(header: Header) -> bool:
    """Say whether a file is the book of a rolling recording."""
    return header.config.get("mode") == ALWAYS


def parts_of(book: Path) -> list[Path]:
    """Return the parts that a report reads: kept steps, roll-ups, then the newest lines."""
    return [path for path in possible_parts(book) if is_readable(path) and not foreign_link(path)]


def lost_parts(book: Path, found: Collection[Path]) -> list[str]:
    """Return the endings of parts that are missing: a recorder makes all, an archive keeps some."""
    if is_archived(book):
        return []
    lost = [ending for ending in _READ if part_of(book, ending) not in found]
    return lost if is_readable(part_of(book, STEPS)) else [*lost, STEPS]


def possible_parts(book: Path) -> list[Path]:
    """Return these parts, whether they are there or not."""
    return [part_of(book, ending) for ending in _READ]


def written_parts(book: Path) -> list[Path]:
    """Return all parts that a recorder writes, whether they are there or not."""
    return [*possible_parts(book), part_of(book, STEPS)]


def files_of_rank(book: Path) -> list[Path]:
    """Return the files of a recording that its budget holds, its book first."""
    return [book, *(part_of(book, ending) for ending in PARTS)]


def is_archived(book: Path) -> bool:
    """Say whether a recording is in an archive: it is over."""
    return book.parent.name.endswith(ARCHIVE)


def is_closed(book: Path) -> bool:
    """Say whether a rank has ended its recording: only the last line closes the list."""
    with suppress(OSError), open_input(book) as file:
        file.seek(-len(_CLOSING), os.SEEK_END)
        return file.read() == _CLOSING
    return False


def written_at_s(book: Path) -> float:
    """Return when a rank wrote last, by the clock of the file system; 0 if that is unknown."""
    times = [0.0]
    for path in (book, *(part_of(book, ending) for ending in TAILS)):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)


def is_part(path: Path) -> bool:
    """Say whether a file is a part of a recording, to be read with its book."""
    return path.name.startswith("trace") and ".rank" in path.name and path.name.endswith(PARTS)


class Extent(NamedTuple):
    """Where lines are."""

    segment: int
    start: int
    end: int


class Tails:
    """The newest lines, in two files by turns: when the newer is full the older begins anew."""

    def __init__(self, book: Path, most_bytes: int, begin: Callable[[int], bytes]) -> None:
        """`begin` gives the first line of a segment, by its number."""
        self._most_bytes, self._begin = most_bytes, begin
        self._files: list[OwnFile] = []
        try:
            for ending in TAILS:
                self._files.append(_create(part_of(book, ending)))
        except OSError:
            self.close()
            raise
        self.segment = 0
        self._size = 0
        self._unwritten = bytearray()
        self._refused: OSError | None = None
        self._put(begin(0))

    @property
    def oldest(self) -> int:
        """The number of the older segment."""
        return max(self.segment - 1, 0)

    def write(self, data: bytes) -> Extent:
        """Append lines, in the next segment if this one is full; `flush` writes them."""
        if self._size + len(data) > self._most_bytes:
            self._attempt(self._begin_next)
        start = self._size
        self._put(data)
        return Extent(self.segment, start, self._size)

    def read(self, extent: Extent) -> bytes:
        """Return lines of a segment that is still there."""
        self.flush()
        length = extent.end - extent.start
        file = self._files[extent.segment % len(self._files)]
        return os.pread(file.fileno(), length, extent.start)

    def flush(self) -> None:
        """Write the lines so far, in one call.

        Raises:
            OSError: the disk refuses them, or refused some since the last call. All are kept.
        """
        error, self._refused = self._refused, None
        if error is not None:
            raise error
        if self._unwritten:
            append(self._newest, bytes(self._unwritten), self._size - len(self._unwritten))
            self._unwritten.clear()

    def try_room(self) -> None:
        """Check that the disk takes more.

        Raises:
            OSError: it does not.
        """
        has_room(self._newest, self._size - len(self._unwritten))

    def give_up_lines(self) -> bytes:
        """Remove the last lines to make room on the disk; return them."""
        written = give_up_lines(self._newest, self._size - len(self._unwritten))
        lines = written + self._unwritten
        self._size -= len(lines)
        self._unwritten.clear()
        return lines

    def touch(self) -> None:
        """Show that the files are in use; raises what `OwnFile.touch` does."""
        for file in self._files:
            file.touch()

    def close(self) -> None:
        """Close the files."""
        while self._files:
            self._files.pop().close()

    @property
    def _newest(self) -> OwnFile:
        return self._files[self.segment % len(self._files)]

    def _put(self, data: bytes) -> None:
        self._unwritten += data
        self._size += len(data)
        if len(self._unwritten) >= _WRITTEN_BYTES:
            self._attempt(self.flush)

    def _begin_next(self) -> None:
        self.flush()
        first = self._begin(self.segment + 1)
        os.ftruncate(self._files[(self.segment + 1) % len(self._files)].fileno(), 0)
        self.segment += 1
        self._size = 0
        self._put(first)

    def _attempt(self, act: Callable[[], None]) -> None:
        """Keep an error for `flush`: raised in `write` it would lose the lines of the caller."""
        if self._refused is None:
            try:
                act()
            except OSError as error:
                self._refused = error


_HEAD = struct.Struct("<4s6xH2sHIqq")
"""Head of a gzip member; its extra field has the size in bytes, the first and the last step."""
_MARKS = (b"\x1f\x8b\x08\x04", 24, b"ds", 20)
_TAIL = struct.Struct("<II")
_MOST_MEMBERS = 1 << 20
_NUMBER_BITS = 63
_MOST_PASSED = 1023


def _member(lines: bytes, steps: range) -> bytes:
    """Pack lines."""
    packer = zlib.compressobj(_LEVEL, wbits=-zlib.MAX_WBITS)
    data = packer.compress(lines) + packer.flush()
    size = _HEAD.size + len(data) + _TAIL.size
    head = _HEAD.pack(*_MARKS, size, steps.start, steps.stop - 1)
    return b"".join((head, data, _TAIL.pack(zlib.crc32(lines), len(lines) & 0xFFFFFFFF)))


def places_of(file: BinaryIO, steps: range) -> list[tuple[int, int]]:
    """Return where in a packed file the members are that have something of these steps."""
    found: list[tuple[int, int]] = []
    at = 0
    for _ in range(_MOST_MEMBERS):
        file.seek(at)
        if len(head := file.read(_HEAD.size)) < _HEAD.size:
            return found
        *marks, size, first, last = _HEAD.unpack(head)
        if tuple(marks) != _MARKS or size <= _HEAD.size:
            break
        if first < steps.stop and last >= steps.start:
            found.append((at, at + size))
        at += size
    return [*found, (at, 1 << 62)]  # written by another program: all of it may be of these steps


class _Member(NamedTuple):
    number: int
    worth: tuple[float, ...]
    start: int
    size: int


def _spaced(members: Sequence[_Member], most_bytes: int) -> list[_Member]:
    """Return those whose number is a multiple of the least power of two that lets them fit."""
    for power in range(_NUMBER_BITS):
        found = [member for member in members if member.number % (1 << power) == 0]
        if sum(member.size for member in found) <= most_bytes:
            return found
    return []


class Packed:
    """Blocks of lines, compressed; above its limit the least worthy half is left out."""

    def __init__(
        self, folder: OwnFile, name: str, most_bytes: int, *, is_sample: bool = False
    ) -> None:
        """The file and the one that replaces it take at most `most_bytes` together.

        The folder is open: it may be moved, and another job record in one of its name.
        `is_sample`: half of what is not left out is chosen by its number only, at one distance.
        """
        self._folder, self._name = folder, name
        self._limit, self._is_sample = most_bytes * 2 // 3, is_sample
        self._file = _create(name, os.O_EXCL, folder)
        self._members: list[_Member] = []
        self._numbers: set[int] = set()
        self._size = 0
        self._unwritten = bytearray()
        self._passed = self._passing = 0  # blocks, since there was no room to shrink

    def add(self, steps: range, worth: tuple[float, ...], lines: bytes) -> None:
        """Append a block of some steps, whose first is its number; several may have the same.

        `flush` writes it: many blocks are one request to a file server.

        Raises:
            OSError: blocks before it are many, and the disk refuses them. It is not added.
        """
        data, number = _member(lines, steps), steps.start
        if self._size + len(data) > self._limit:
            self._shrink_if_there_is_room(self._limit // 2)
        if self._size + len(data) > self._limit:
            return
        if len(self._unwritten) >= _WRITTEN_BYTES:
            self.flush()
        self._unwritten += data
        self._members.append(_Member(number, worth, self._size, len(data)))
        self._numbers.add(number)
        self._size += len(data)

    def flush(self) -> None:
        """Write the blocks so far, in one call.

        Raises:
            OSError: the disk refuses them. All are kept.
        """
        if self._unwritten:
            append(self._file, bytes(self._unwritten), self._size - len(self._unwritten))
            self._unwritten.clear()

    def has(self, number: int) -> bool:
        """Say whether a block of this number is there."""
        return number in self._numbers

    def promote(self, number: int, worth: tuple[float, ...]) -> bool:
        """Give blocks more worth; false where none of that number is worth less."""
        found = [at for at, one in enumerate(self._members) if one.number == number]
        is_less = bool(found) and all(self._members[at].worth < worth for at in found)
        for at in found if is_less else ():
            self._members[at] = self._members[at]._replace(worth=worth)
        return is_less

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def touch(self) -> None:
        """Show that the file is in use; raises what `OwnFile.touch` does."""
        self._file.touch()

    def _shrink_if_there_is_room(self, most_bytes: int) -> None:
        """Shrink the file. Where there is no room for the copy, new blocks are left out.

        Each failure doubles the number of blocks that pass before it is tried again.
        """
        if self._passing:
            self._passing -= 1
            return
        try:
            self._shrink(most_bytes)
            self._passed = 0
        except OSError:
            self._passed = self._passing = min(2 * self._passed + 1, _MOST_PASSED)

    def _shrink(self, most_bytes: int) -> None:
        """Replace the file, as a whole, by one with its worthiest blocks."""
        self.flush()
        chosen = _spaced(self._members, most_bytes // 2) if self._is_sample else []
        size = sum(member.size for member in chosen)
        others = set(self._members).difference(chosen)
        for member in sorted(others, key=lambda one: (one.worth, -one.start), reverse=True):
            if size + member.size > most_bytes:
                break
            chosen.append(member)
            size += member.size
        folder, copy = self._folder.fileno(), copy_of(Path(self._name)).name
        file = _create(copy, os.O_TRUNC, self._folder)
        members, at = [], 0
        try:
            for member in sorted(chosen, key=lambda one: one.start):
                self._copy(member, file, at)
                members.append(member._replace(start=at))
                at += member.size
            os.fsync(file.fileno())
            os.replace(copy, self._name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            file.close()
            with suppress(FileNotFoundError):
                os.unlink(copy, dir_fd=folder)
            raise
        self._file.close()
        self._file = file
        self._members, self._size = members, at
        self._numbers = {member.number for member in members}

    def _copy(self, member: _Member, to: OwnFile, to_bytes: int) -> None:
        for at in range(0, member.size, _COPIED_BYTES):
            size = min(_COPIED_BYTES, member.size - at)
            append(to, os.pread(self._file.fileno(), size, member.start + at), to_bytes + at)


def _create(path: Path | str, how: int = os.O_EXCL, folder: OwnFile | None = None) -> OwnFile:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | how
    return OwnFile(path, flags, folder)
