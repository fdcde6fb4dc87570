"""What is asked of a rolling recording, and which steps its ranks agree on."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from dsprof.files import notes
from dsprof.trace.schema import Kept

MOST_STEPS = 1000
LEAST_PAUSE_S = 10
"""A request so soon after the one before is not followed."""

LARGEST_BYTES = 4096
_REQUEST, _ANSWER, _ALARM = ".capture.json", ".capture-{}.json", ".alarm.json"
_KEPT_S = 3600.0
"""An answer this old is known to all ranks: a request may come each minute for a month."""

Id = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-z-]{1,40}\Z")]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Details of so many steps are wanted, on all ranks."""

    id: Id
    steps: Annotated[int, msgspec.Meta(ge=1, le=MOST_STEPS)]
    asked_s: float  # on the wall clock


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


def ask(folder: Path, steps: int) -> Request:
    """Leave a request for the ranks that record into a folder.

    Raises:
        OSError: it cannot be written.
    """
    request = Request(secrets.token_hex(8), steps, time.time())
    _forget(folder.glob(_ANSWER.format("*")), before_s=request.asked_s - _KEPT_S)
    notes.put(folder / _REQUEST, msgspec.json.encode(request))
    return request


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


def withdraw(folder: Path) -> None:
    """Remove the request, so that no rank follows it later."""
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


def announce(folder: Path, found: Captured) -> None:
    """Tell all ranks, where they have no store.

    Raises:
        OSError: the folder cannot be written.
    """
    notes.put(folder / _ALARM, msgspec.json.encode(found))


def announced(folder: Path, since_s: float) -> bytes:
    """Return the last announcement since then; nothing if there is none.

    One of an earlier run, which was killed, names steps of that run.
    """
    path = folder / _ALARM
    with suppress(OSError):
        if path.lstat().st_mtime >= since_s:
            return notes.read(path, LARGEST_BYTES)
    return b""


def forget_announced(folder: Path, before_s: float) -> None:
    """Remove the last announcement if it is older: all ranks have seen it."""
    _forget([folder / _ALARM], before_s)


def agreed(folder: Path, request: Request) -> Captured | None:
    """Return what ranks agreed on after a request; None if they have not yet."""
    return decoded(notes.read(_agreed(folder, request.id), LARGEST_BYTES))


def _agreed(folder: Path, request: str) -> Path:
    return folder / _ANSWER.format(request)
