"""Small files by which processes of one user tell each other something."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryFile

from dsprof.files.ownership import is_own


def put(path: Path, data: bytes, *, is_first: bool = False, mode: int = 0o600) -> bool:
    """Write a file as a whole, through no link; false where `is_first` and another was first.

    Raises:
        OSError: it cannot be written.
    """
    # Not by the number of this process: in containers those of several hosts are the same.
    part = path.with_name(f".{path.name}.{token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(part, flags, mode), "wb") as file:
            file.write(data)
        if is_first:
            os.link(part, path)
        else:
            os.replace(part, path)
    except FileExistsError:
        return False
    finally:
        part.unlink(missing_ok=True)
    return True


def refresh(folder: Path) -> None:
    """Have NFS look for what it has not found in a folder: else it may not for a minute."""
    with suppress(OSError):
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def now_s(folder: Path) -> float:
    """Return the time by the clock of the file system, as files show when they were written.

    Raises:
        OSError: the folder cannot be written.
    """
    with TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime


def read(path: Path, most_bytes: int) -> bytes:
    """Return a small file of this user; nothing where there is none, or it is larger."""
    with suppress(OSError):
        return read_if(path, most_bytes, lambda of: of.st_size <= most_bytes and is_own(of))
    return b""


def read_if(path: Path, size: int, is_fit: Callable[[os.stat_result], bool]) -> bytes:
    """Return the start of a regular file, through no link; nothing if its status does not fit.

    Raises:
        OSError: it cannot be read.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        return os.read(file, size) if stat.S_ISREG(status.st_mode) and is_fit(status) else b""
    finally:
        os.close(file)
