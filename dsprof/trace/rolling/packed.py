"""What was copied out of the tails of a rolling recording, packed.

A file is gzip members, each with its checksum, one after the other: what a killed process was just
writing is the last one. The head of each says how long it is and of which steps, so that those of
some steps are found without the rest.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dsprof.trace.rolling.parts import copy_of
from dsprof.trace.writing.disk import WRITTEN_BYTES, OwnFile, create

_COPIED_BYTES = 1 << 20
_PACKED_TOGETHER_BYTES = 1 << 20
_LEVEL = 3  # 15 % larger than at 6, in a third of the time

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
        self._file = create(name, os.O_EXCL, folder)
        self._members: list[_Member] = []
        self._numbers: set[int] = set()
        self._unwritten = bytearray()
        self._passed = self._passing = 0  # blocks, since there was no room to shrink

    def add(self, steps: range, worth: tuple[float, ...], lines: bytes) -> None:
        """Append a block of some steps, whose first is its number; several may have the same.

        `flush` writes it: many blocks are one request to a file server.

        Raises:
            OSError: blocks before it are many, and the disk refuses them. It is not added.
        """
        data, number = _member(lines, steps), steps.start
        if self._end + len(data) > self._limit:
            self._shrink_if_there_is_room(self._limit // 2)
        if self._end + len(data) > self._limit:
            return
        if len(self._unwritten) >= WRITTEN_BYTES:
            self.flush()
        self._members.append(_Member(number, worth, self._end, len(data)))
        self._numbers.add(number)
        self._unwritten += data

    @property
    def _end(self) -> int:
        """Where the next block begins, once all before it are written."""
        return self._file.nbytes + len(self._unwritten)

    def flush(self) -> None:
        """Write the blocks so far, in one call.

        Raises:
            OSError: the disk refuses them. All are kept.
        """
        if self._unwritten:
            self._file.append(bytes(self._unwritten))
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
        file = create(copy, os.O_TRUNC, self._folder)
        members = []
        try:
            for member in sorted(chosen, key=lambda one: one.start):
                members.append(member._replace(start=file.nbytes))
                self._copy(member, file)
            os.fsync(file.fileno())
            os.replace(copy, self._name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            file.close()
            with suppress(FileNotFoundError):
                os.unlink(copy, dir_fd=folder)
            raise
        self._file.close()
        self._file = file
        self._members = members
        self._numbers = {member.number for member in members}

    def _copy(self, member: _Member, to: OwnFile) -> None:
        for at in range(0, member.size, _COPIED_BYTES):
            to.append(self._file.read(min(_COPIED_BYTES, member.size - at), member.start + at))


class Batch:
    """Lines that are packed together."""

    def __init__(self, packed: Packed, worth: int = 0) -> None:
        """What has less `worth` leaves first."""
        self._packed, self._worth = packed, worth
        self._lines = bytearray()
        self._steps = range(0)
        self._blocks = 0

    def add(self, steps: range, lines: bytes) -> None:
        """Take lines of some steps; pack them once they are many."""
        known = self._steps or steps
        self._steps = range(min(known.start, steps.start), max(known.stop, steps.stop))
        self._lines += lines
        if len(self._lines) > _PACKED_TOGETHER_BYTES:
            self.pack()

    def pack(self) -> None:
        """Pack all lines so far; of equal worth, the oldest leave first."""
        if self._lines:
            self._blocks += 1
            worth = self._worth, self._blocks
            self._packed.add(self._steps, worth, bytes(self._lines))
            self._lines.clear()
            self._steps = range(0)
