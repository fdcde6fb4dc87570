"""What is asked of a rolling recording, and which steps its ranks agree on."""

from __future__ import annotations

import fcntl
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import msgspec

from dsprof.errors import DsprofError
from dsprof.files import notes
from dsprof.files.decoding import UNDECODABLE
from dsprof.trace.dumps.state_file import process_digest
from dsprof.trace.host_folders import MANY_RANKS
from dsprof.trace.schema import Header, Kept

MOST_STEPS = 1000
LEAST_PAUSE_S = 10
"""A request so soon after the one before is not followed."""

LEAST_AHEAD = 5
"""A request begins at least this many steps after the last one that ended."""

PATIENCE_S = 60.0
"""A request waits this long for an answer: on NFS, a rank may see it half a minute late."""

LARGEST_BYTES = 1 << 14
_REQUEST, _ANSWER, _ALARM = ".capture.json", ".capture-{}.json", ".alarm-{}.json"
_KEPT_S = 3600.0
"""An answer this old is known to all ranks: a request may come each minute for a month."""

Id = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-z-]{1,40}\Z")]
Processes = Annotated[
    dict[int, Annotated[str, msgspec.Meta(max_length=8)]], msgspec.Meta(max_length=MANY_RANKS)
]
"""What tells the process of each rank from any other; of many ranks, or unknown ones, nothing."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Details of so many steps are wanted, on all ranks.

    It has no time: the clocks of terminals and nodes differ.
    """

    id: Id
    steps: Annotated[int, msgspec.Meta(ge=1, le=MOST_STEPS)]
    run: Annotated[str, msgspec.Meta(max_length=100)] = ""  # its key; "": of whichever run
    processes: Processes = {}

    def is_of(self, header: Header) -> bool:
        """Say whether a rank is asked: other runs may record into the folder, even with its key."""
        mine = process_digest(header).hex()
        is_one = self.processes.get(header.rank, mine) == mine
        return self.run in ("", header.run_key) and is_one


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


def ask(folder: Path, steps: int, headers: Sequence[Header] = ()) -> Request:
    """Leave a request for the ranks of a run that record into a folder; hold it with `held`.

    Raises:
        DsprofError: another request waits for an answer.
        OSError: it cannot be written.
    """
    path = folder / _REQUEST
    few = headers if len(headers) <= MANY_RANKS else ()
    request = Request(
        secrets.token_hex(8),
        steps,
        headers[0].run_key if headers else "",
        {one.rank: process_digest(one).hex() for one in few},
    )
    if left_s := _waits_s(folder):
        raise _refused(folder, left_s)
    path.unlink(missing_ok=True)
    if not notes.put(path, msgspec.json.encode(request), is_first=True):
        raise _refused(folder, PATIENCE_S)
    _forget(folder.glob(_ANSWER.format("*")), before_s=asked_at_s(folder) - _KEPT_S)
    return request


@contextmanager
def held(folder: Path, request: Request) -> Iterator[None]:
    """Lock a request while its answer is awaited; that of a killed process makes room.

    An exception withdraws it.

    Raises:
        DsprofError: another request took its place before it was locked.
        OSError: the folder cannot be read.
    """
    notes.refresh(folder)
    with (folder / _REQUEST).open("rb") as file:
        if _locked(file) is False or asked(folder) != request:
            raise _refused(folder, PATIENCE_S)
        try:
            yield
        except BaseException:  # also Ctrl-C
            withdraw(folder, request)
            raise


def _refused(folder: Path, left_s: float) -> DsprofError:
    return DsprofError(
        f"{folder}: another request waits for an answer; try again after it, in at most "
        f"{left_s:.0f} s"
    )


def _locked(file: BinaryIO) -> bool | None:
    """Lock a file until it is closed; false if another process has, None without locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # of the file system
        return None
    return True


def _waits_s(folder: Path) -> float:
    """Return how long a request may still wait for its answer; 0 if none waits."""
    notes.refresh(folder)
    request = asked(folder)
    if request is None or agreed(folder, request) is not None:
        return 0.0
    with suppress(OSError), (folder / _REQUEST).open("rb") as file:
        if _locked(file):  # who asked was killed
            return 0.0
    with suppress(FileNotFoundError):
        age_s = notes.now_s(folder) - asked_at_s(folder)
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
    with suppress(*UNDECODABLE):
        return msgspec.json.decode(notes.read(folder / _REQUEST, LARGEST_BYTES), type=Request)
    return None


def decoded(data: bytes) -> Captured | None:
    """Return what ranks agreed on; None if it is damaged."""
    with suppress(*UNDECODABLE):
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
