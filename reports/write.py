"""Writing results: a file appears whole, or what was there before stays."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from dsprof.errors import OutputError


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path` in one move, keeping the permissions of a file that is replaced.

    A link is followed, so that the file behind it is replaced and not the link. What cannot be
    replaced in one move (a pipe, /dev/stdout) is written to directly.

    Raises:
        OutputError: the file cannot be written; `path` is then as it was before.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(data)
        else:
            _replace(path.resolve(), data)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"cannot write {path}: {reason}; choose another place with -o FILE"
        ) from None


def _replace(path: Path, data: bytes) -> None:
    # In the same folder, because a rename is one move only within a file system.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, _mode(path))
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _mode(path: Path) -> int:
    """Permissions of the file that is replaced, else what `open` would give a new one."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        umask = os.umask(0)  # the only way to read it is to set it
        os.umask(umask)
        return 0o666 & ~umask
