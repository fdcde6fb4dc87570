"""Files that the writer appends to: a write that fails leaves no partial data."""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from pathlib import Path

_ROOM_BYTES = 1 << 14
_SEARCHED_BYTES = 1 << 20
_PROBE_BYTES = 1 << 20


def create_trace(folder: Path, rank: int, first: int, start: bytes) -> tuple[int, Path]:
    """Create a file that no run has used: the second run in a folder gets trace.1.rank00000.

    Raises:
        OSError: the file cannot be created, or cannot hold `start`; no file is left.
    """
    for run in itertools.count(first):
        path = folder / f"trace{f'.{run}' if run else ''}.rank{rank:05d}.json"
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            continue
        file = past_standard_files(file)
        try:
            append(file, start, 0)
        except OSError:
            os.close(file)
            path.unlink()
            raise
        return file, path
    raise AssertionError("unreachable: count() does not end")


def past_standard_files(file: int) -> int:
    """Move a file off descriptors 0 to 2. They are free in a daemon: prints would go into it."""
    below = []
    while file <= 2:
        below.append(file)
        file = os.dup(file)
    for one in below:
        os.close(one)
    return file


def append(file: int, data: bytes, size_bytes: int) -> None:
    """Append all of `data` to a file of `size_bytes`, or nothing. One `pwrite` may take a part."""
    at = 0
    try:
        while at < len(data):
            at += os.pwrite(file, data[at:] if at else data, size_bytes + at)
    except OSError:
        with suppress(OSError):
            os.ftruncate(file, size_bytes)
        raise


def has_room(file: int, size_bytes: int) -> None:
    """Check that a file of `size_bytes` can grow by 1 MiB.

    Raises:
        OSError: it cannot.
    """
    append(file, os.urandom(_PROBE_BYTES), size_bytes)  # zeros may take no room
    os.ftruncate(file, size_bytes)


def give_up_lines(file: int, size_bytes: int, least_bytes: int = 0) -> bytes:
    """Remove the last 16 KiB of a file, rounded up to whole lines; return these lines.

    The first `least_bytes`, which are whole lines, stay.

    Raises:
        OSError: it cannot be read or shortened.
    """
    end = max(size_bytes - _ROOM_BYTES, least_bytes)
    begin = max(end - _SEARCHED_BYTES, least_bytes)
    size = begin + os.pread(file, end - begin, begin).rfind(b"\n") + 1
    lines = os.pread(file, size_bytes - size, size)
    os.ftruncate(file, size)
    return lines
