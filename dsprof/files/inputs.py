"""Files that are given to us by name: local ones, and addresses such as `s3://bucket/run`."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from dsprof.files import remote
from dsprof.files.remote import RemoteError, RemotePath

_KERNEL_FOLDERS = ("/proc/", "/sys/")
"""Reading a file there may block, never end, or change the state of a device."""

POINTER_START = b"version https://git-lfs."
POINTER = "a pointer of Git LFS, not the file; run `git lfs pull`"


class FileStatus(NamedTuple):
    """What is known of a file without reading it."""

    nbytes: int
    nbytes_on_disk: int  # without holes, which cost nothing and read as zeros
    version: str  # another once the file has changed; "": unknown


def input_path(given: str | os.PathLike[str]) -> Path:
    """Return the path of a file or folder, or an address.

    Raises:
        ValueError: it is empty, or an address that is not read; credentials in it are not repeated.
    """
    if isinstance(given, Path):
        return given
    text = os.fspath(given)
    if not text:
        raise ValueError("the path is empty; write a file, a folder, or . for this folder")
    return remote.address(text) if remote.is_address(text) else Path(text)


def is_local(path: Path) -> bool:
    """Say whether a path is of this machine."""
    return not isinstance(path, RemotePath)


def real_name(path: Path) -> str:
    """Return a name by which a file is known once."""
    return str(path) if isinstance(path, RemotePath) else os.path.realpath(path)


def exists(path: Path) -> bool:
    """Say whether there is such a file or folder; false where we may not look.

    True where a store does not tell: whoever opens it meets the error.
    """
    if not isinstance(path, RemotePath):
        return os.path.exists(path)
    try:
        remote.status_of(path)
    except RemoteError as error:
        return error.errno != errno.ENOENT
    return True


def is_folder(path: Path) -> bool:
    """Say whether a path is a folder.

    Raises:
        RemoteError: the store of an address does not tell.
    """
    if isinstance(path, RemotePath):
        return remote.status_of(path).is_folder
    return os.path.isdir(path)


def is_file(path: Path) -> bool:
    """Say whether a path is a file; false where we may not look."""
    if not isinstance(path, RemotePath):
        return os.path.isfile(path)
    with suppress(RemoteError):
        return not remote.status_of(path).is_folder
    return False


def entries(folder: Path) -> list[Path]:
    """Return what is in a folder, sorted.

    Raises:
        OSError: it cannot be read.
    """
    if isinstance(folder, RemotePath):
        return list(remote.entries(folder))
    return sorted(folder.iterdir())


def size_of(path: Path) -> int:
    """Return the size of a file in bytes.

    Raises:
        OSError: it cannot be found out.
    """
    if isinstance(path, RemotePath):
        return remote.status_of(path).nbytes
    return os.stat(path).st_size


def open_input(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file, or an object of a store, for reading.

    Raises:
        OSError: it cannot be opened, or is not regular: opening a FIFO would wait for its writer.
    """
    if isinstance(path, RemotePath):
        return remote.open_object(path)
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        folder = "it is a folder; give a file in it"
        raise IsADirectoryError(errno.EISDIR, folder, os.fspath(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    if os.path.realpath(path).startswith(_KERNEL_FOLDERS):
        raise OSError(errno.EINVAL, "a file of the kernel, not a recorded one", os.fspath(path))
    return open(path, "rb")


def status_of(file: BufferedReader) -> FileStatus:
    """Return the status of a file that `open_input` opened."""
    if isinstance(file.raw, remote.Ranges):
        _, nbytes, version = file.raw.status
        return FileStatus(nbytes, nbytes, version)
    status = os.fstat(file.fileno())
    blocks = getattr(status, "st_blocks", 0)  # 0 also where a file system does not count them
    on_disk = min(status.st_size, 512 * blocks) if blocks else status.st_size
    return FileStatus(status.st_size, on_disk, version_of(status))


def version_of(status: os.stat_result) -> str:
    """Return what changes with a local file: the ctime does even where the mtime is set back."""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def read_input(path: str | os.PathLike[str], largest_bytes: int) -> bytes:
    """Read a regular file whole.

    Raises:
        OSError: as `open_input`, or the file is larger than `largest_bytes`, or only a pointer.
    """
    with open_input(path) as file:
        data = file.read(largest_bytes + 1)
    if data.startswith(POINTER_START):
        raise OSError(errno.EINVAL, POINTER, os.fspath(path))
    if len(data) > largest_bytes:
        raise OSError(errno.EFBIG, f"larger than {largest_bytes >> 10:,} KiB", os.fspath(path))
    return data
