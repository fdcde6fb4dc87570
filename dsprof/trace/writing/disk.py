"""Files that the writer appends to: a write that fails leaves no partial data."""

from __future__ import annotations

import errno
import itertools
import os
from contextlib import suppress
from pathlib import Path

WRITTEN_BYTES = 1 << 18
"""What is written in many small parts is written together: a write is a request to a server."""

_ROOM_BYTES = 1 << 14
_SEARCHED_BYTES = 1 << 20
_PROBE_BYTES = 1 << 20


class OwnFile:
    """An open file that is never mistaken for another one.

    A program may close descriptors that it did not open, as daemons do. The next file that it
    opens, such as a checkpoint, then has the number of the trace.
    """

    __slots__ = ("_descriptor", "_identity", "_place", "nbytes")

    def __init__(self, path: Path | str, flags: int, folder: OwnFile | None = None) -> None:
        """Open the empty file `path`, or the one of this name in an open folder.

        Raises:
            OSError: it cannot be opened.
        """
        place = None if folder is None else folder.fileno()
        self._descriptor = past_standard_files(os.open(path, flags, 0o644, dir_fd=place))
        self._place, self._identity = _place(self._descriptor), _identity(self._descriptor)
        self.nbytes = 0

    def fileno(self) -> int:
        """Return the descriptor.

        Raises:
            OSError: the program closed it.
        """
        # The place costs no request to a file server. Another one may be that of a moved folder.
        moved = not self._place or _place(self._descriptor) != self._place
        if moved and _identity(self._descriptor) != self._identity:
            raise OSError(errno.EBADF, "the program closed the file")
        return self._descriptor

    def append(self, data: bytes) -> None:
        """Append all of `data`, or nothing. One `pwrite` may take a part.

        Raises:
            OSError: the program closed the file, or the disk refuses the data.
        """
        at = 0
        try:
            while at < len(data):
                rest = data[at:] if at else data
                at += os.pwrite(self.fileno(), rest, self.nbytes + at)
        except OSError:
            with suppress(OSError):
                self.cut(self.nbytes)
            raise
        self.nbytes += at

    def read(self, nbytes: int, at_bytes: int) -> bytes:
        """Read a part of what was written; raises what `append` does."""
        return os.pread(self.fileno(), nbytes, at_bytes)

    def cut(self, nbytes: int) -> None:
        """Keep only the first `nbytes`; raises what `append` does."""
        os.ftruncate(self.fileno(), nbytes)
        self.nbytes = nbytes

    def check_room(self) -> None:
        """Check that the file can grow by 1 MiB; raises what `append` does if it cannot."""
        nbytes = self.nbytes
        self.append(os.urandom(_PROBE_BYTES))  # zeros may take no room
        self.nbytes = nbytes
        self.cut(nbytes)

    def give_up_lines(self, least_bytes: int = 0) -> bytes:
        """Remove the last 16 KiB, rounded up to whole lines; return these lines.

        The first `least_bytes`, which are whole lines, stay. Raises what `append` does.
        """
        end = max(self.nbytes - _ROOM_BYTES, least_bytes)
        begin = max(end - _SEARCHED_BYTES, least_bytes)
        kept = begin + self.read(end - begin, begin).rfind(b"\n") + 1
        lines = self.read(self.nbytes - kept, kept)
        self.cut(kept)
        return lines

    def touch(self) -> None:
        """Show that the file is in use.

        Raises:
            OSError: the program closed it, or the disk refuses it.
        """
        os.utime(self.fileno())

    def close(self) -> None:
        """Close the file, if it is open; twice does no harm."""
        with suppress(OSError):
            os.close(self.fileno())


def create(path: Path | str, how: int = os.O_EXCL, folder: OwnFile | None = None) -> OwnFile:
    """Create a file that is appended to, or `how` says otherwise; no link is followed.

    Raises:
        OSError: it cannot be created.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | how
    return OwnFile(path, flags, folder)


def open_folder(folder: Path) -> OwnFile:
    """Open a folder, only for names in it.

    Raises:
        OSError: it cannot be opened.
    """
    return OwnFile(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _place(descriptor: int) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{descriptor}")
    return ""


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def create_trace(folder: Path, rank: int, first: int, start: bytes) -> tuple[OwnFile, Path]:
    """Create a file that no run has used: the second run in a folder gets trace.1.rank00000.

    Raises:
        OSError: the file cannot be created, or cannot hold `start`; no file is left.
    """
    for run in itertools.count(first):
        path = folder / f"trace{f'.{run}' if run else ''}.rank{rank:05d}.json"
        try:
            file = OwnFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            continue
        try:
            file.append(start)
        except OSError:
            file.close()
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
