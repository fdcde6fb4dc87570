"""Writing results: a file appears whole, or what was there before stays."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dsprof.errors import OutputError
from dsprof.files.ownership import foreign_link, is_own


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path` in one move, keeping the permissions of a file that is replaced.

    A link is followed, so that the file behind it is replaced and not the link. What cannot be
    replaced in one move (a pipe, /dev/stdout) is written to directly.

    Raises:
        OutputError: the file cannot be written; `path` is then as it was before.
    """
    with writing(path) as file:
        file.write(data)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that appears at `path` when all is written, as by `write_whole`.

    Raises:
        OutputError: as `write_whole`.
    """
    check_owner(path)
    try:
        if os.path.exists(path) and not path.is_file() and not path.is_dir():
            with path.open("wb") as file:
                yield file
        else:
            with _replacing(Path(os.path.realpath(path))) as file:
                yield file
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"cannot write {path}: {reason}; choose another place with -o FILE"
        ) from None


def check_owner(path: Path) -> None:
    """Refuse what another user may have put in the way of a result: a link, or a pipe.

    Raises:
        OutputError: `path` is one.
    """
    planted: Path | None = foreign_link(path)
    with contextlib.suppress(OSError):
        status = path.stat()
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) or is_own(status)):
            planted = path
    if planted is not None:
        raise OutputError(
            f"cannot write {path}: {planted} leads elsewhere and belongs to another user; choose "
            "another place with -o FILE"
        )


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    # In the same folder, because a rename is one move only within a file system.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
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
