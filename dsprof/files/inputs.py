"""Files that are given to us by name."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader

_KERNEL_FOLDERS = ("/proc/", "/sys/")
"""Reading a file there may block, never end, or change the state of a device."""


def open_input(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading.

    Raises:
        OSError: it cannot be opened, or is not regular: opening a FIFO would wait for its writer.
    """
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    if os.path.realpath(path).startswith(_KERNEL_FOLDERS):
        raise OSError(errno.EINVAL, "a file of the kernel, not a recorded one", os.fspath(path))
    return open(path, "rb")


def read_input(path: str | os.PathLike[str], largest_bytes: int) -> bytes:
    """Read a regular file whole.

    Raises:
        OSError: as `open_input`, or the file is larger than `largest_bytes`.
    """
    with open_input(path) as file:
        data = file.read(largest_bytes + 1)
    if len(data) > largest_bytes:
        raise OSError(errno.EFBIG, f"larger than {largest_bytes >> 10:,} KiB", os.fspath(path))
    return data
