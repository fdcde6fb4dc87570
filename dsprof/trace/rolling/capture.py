"""What is asked of a rolling recording, and which steps its ranks agree on."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Literal

import msgspec

from dsprof.errors import DsprofError
from dsprof.files import notes
from dsprof.trace.schema import Kept

MOST_STEPS = 1000
LEAST_PAUSE_S = 10
"""A request so soon after the one before is not followed."""

LEAST_AHEAD = 5
"""So many steps after the last one that ended, at least, the first of a request begins."""

PATIENCE_S = 60.0
"""So long a request waits for an answer: on NFS, a rank may see it half a minute late."""

LARGEST_BYTES = 4096
_REQUEST, _ANSWER, _ALARM = ".capture.json", ".capture-{}.json", ".alarm-{}.json"
_KEPT_S = 3600.0
"""An answer this old is known to all ranks: a request may come each minute for a month."""

Id = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-z-]{1,40}\Z")]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Details of so many steps are wanted, on all ranks.

    It has no time: the clocks of terminals and nodes differ.
    """

    id: Id
    steps: Annotated[int, msgspec.Meta(ge=1, le=MOST_STEPS)]
    run: Annotated[str, msgspec.Meta(max_length=100)] = ""  # its key; "": of whichever run

    def is_of(self, run: str) -> bool:
        """Say whether the ranks of a run are asked: others may record into the same folder."""
        return self.run in ("", run)


class Captured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The steps that ranks agreed on."""

    id: Id
    first_step: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
    steps: Annotated[int, msgspec.Meta(ge=1, le=MOST_STEPS)]
    why: Literal["capture", "alarm"] = "capture"  # a user asked, or a rank noticed something
    cause: Annotated[str, msgspec.Meta(max_length=100)] = ""

    @property
    def range(self) -> range:
        """The steps."""
        return range(self.first_step, self.first_step + self.steps)

    def kept(self, step: int, times: float = 0.0) -> Kept:
        """Return what the trace says of one of them."""
        return Kept(step, self.why, times, self.cause)


def ask(folder: Path, steps: int, run: str = "") -> Request:
    """Leave a request for the ranks of a run that record into a folder.

    Raises:
        DsprofError: another request waits for an answer.
        OSError: it cannot be written.
    """
    path, request = folder / _REQUEST, Request(secrets.token_hex(8), steps, run)
    left_s = _waits_s(folder)
    if not left_s:
        path.unlink(missing_ok=True)
        if notes.put(path, msgspec.json.encode(request), is_first=True):
            old_s = asked_at_s(folder) - _KEPT_S
            _forget(folder.glob(_ANSWER.format("*")), before_s=old_s)
            return request
        left_s = PATIENCE_S
    raise DsprofError(
        f"{folder}: another request waits for an answer; try again after it, in at most "
        f"{left_s:.0f} s"
    )


def _waits_s(folder: Path) -> float:
    """Return how long a request may still wait for its answer; 0 if none waits."""
    notes.refresh(folder)
    request = asked(folder)
    if request is None or agreed(folder, request) is not None:
        return 0.0
    with suppress(FileNotFoundError), TemporaryFile(dir=folder) as file:
        age_s = os.fstat(file.fileno()).st_mtime - asked_at_s(folder)
        return PATIENCE_S - age_s if 0 <= age_s < PATIENCE_S else 0.0
    return 0.0


def _forget(paths: Iterable[Path], before_s: float) -> None:
    for path in paths:
        with suppress(OSError):
            if path.lstat().st_mtime < before_s:
                path.unlink()


def asked_at_s(folder: Path) -> float:
    """Return when the last request was left, by the clock of the file system.

    Raises:
        OSError: there is none.
    """
    return (folder / _REQUEST).stat().st_mtime


def withdraw(folder: Path, request: Request) -> None:
    """Remove a request, so that no rank follows it later."""
    if asked(folder) == request:
        with suppress(OSError):
            (folder / _REQUEST).unlink()


def asked(folder: Path) -> Request | None:
    """Return the last request of this user; None if there is none, or it is damaged."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(notes.read(folder / _REQUEST, LARGEST_BYTES), type=Request)
    return None


def decoded(data: bytes) -> Captured | None:
    """Return what ranks agreed on; None if it is damaged."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(data, type=Captured)
    return None


def agree(folder: Path, proposal: Captured) -> Captured:
    """Return what the first rank proposed that saw this request.

    Raises:
        OSError: the folder cannot be written.
    """
    path = _agreed(folder, proposal.id)
    notes.put(path, msgspec.json.encode(proposal), is_first=True)
    return decoded(notes.read(path, LARGEST_BYTES)) or proposal


def announce(folder: Path, run: str, found: bytes) -> None:
    """Tell all ranks of a run, where they have no store, in place of what was announced before.

    Raises:
        OSError: the folder cannot be written.
    """
    notes.put(folder / _ALARM.format(run), found)


def announced(folder: Path, run: str) -> bytes:
    """Return what was announced, also by an earlier run of this key; nothing if nothing was."""
    return notes.read(folder / _ALARM.format(run), LARGEST_BYTES)


def forget_announced(folder: Path, before_s: float) -> None:
    """Remove what was announced if it is older: all ranks have seen it."""
    _forget(folder.glob(_ALARM.format("*")), before_s)


def agreed(folder: Path, request: Request) -> Captured | None:
    """Return what ranks agreed on after a request; None if they have not yet."""
    return decoded(notes.read(_agreed(folder, request.id), LARGEST_BYTES))


def _agreed(folder: Path, request: str) -> Path:
    return folder / _ANSWER.format(request)
