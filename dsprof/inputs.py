"""Files that are given to us by name."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader


def open_input(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading.

    Raises:
        OSError: it cannot be opened, or is none: opening a FIFO would wait for its writer.
    """
    if stat.S_ISREG(mode := os.stat(path).st_mode) or stat.S_ISDIR(mode):
        return open(path, "rb")
    raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
