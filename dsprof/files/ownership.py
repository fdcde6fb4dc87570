"""Which files another user of this machine may have planted."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path


def why_untrusted(path: str | os.PathLike[str]) -> str:
    """Say how another user could have put or changed the file at `path`; "" where none could.

    Raises:
        OSError: there is no such file.
    """
    real = Path(os.path.realpath(path))
    for part in (real, *real.parents):
        status = os.lstat(part)
        if not is_own(status):
            return f"{part} belongs to another user"
        is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if not is_sticky and _is_writable_by_others(status):
            return f"{part} can be written by other users"
    return ""


def is_own(status: os.stat_result) -> bool:
    """Say whether a file is of this user, or of root, who needs no file to do harm."""
    return status.st_uid in (0, os.geteuid())


def foreign_link(path: str | os.PathLike[str]) -> Path | None:
    """Return the first link on the way from `path` to its file that another user owns."""
    link = Path(path)
    for _ in range(40):  # as many as Linux follows
        try:
            status = os.lstat(link)
        except OSError:
            return None
        if not stat.S_ISLNK(status.st_mode):
            return None
        if not is_own(status):
            return link
        link = link.parent / os.readlink(link)
    return None


def _is_writable_by_others(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(status.st_gid)


def _is_private_group(gid: int) -> bool:
    """Say whether a group is the private one that many systems make for each user.

    Others may have it as their primary group, which no lookup tells: its name must be the user's.
    """
    import grp  # Unix
    import pwd

    with suppress(KeyError):
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
        return gid == user.pw_gid and group.gr_name == user.pw_name and not group.gr_mem
    return False
