"""`dsprof capture`: have a running job keep the details of its next steps."""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dsprof.cli.loading import local_path
from dsprof.errors import DsprofError, argument

if TYPE_CHECKING:
    from dsprof.trace.rolling.capture import Request
    from dsprof.trace.run import RunFiles

_LOOK_S = 0.2
_SILENT_S = 60.0
"""A running rank writes at least every 5 s; NFS may hold it back for half a minute."""


class CaptureCommand:
    """Asks the ranks of a rolling recording for the same future steps."""

    name = "capture"
    help = "keep the next steps of a running job in full detail"
    description = """\
Ask a job that records with mode: always to keep the details of its next
steps, the same on all ranks.

  dsprof capture dsprof-out                   32 steps
  dsprof capture dsprof-out --steps 100

FOLDER is where the job writes its traces. Run it as the user of the job."""

    def prepare(self, parser: ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument(
            "folder", type=local_path, metavar="FOLDER", help="folder of the job's traces"
        )
        parser.add_argument(
            "--steps", type=int, default=32, metavar="N", help="number of steps (default: 32)"
        )

    def run(self, arguments: Namespace) -> int:
        """Ask, and wait for the ranks to agree."""
        from dsprof.trace.host_folders import shared_folder
        from dsprof.trace.rolling.capture import LEAST_AHEAD, MOST_STEPS, ask, held

        steps = arguments.steps
        if not 1 <= steps <= MOST_STEPS:
            raise DsprofError(f"--steps must be 1 to {MOST_STEPS:,}, got {steps:,}")
        run = _run(arguments.folder)
        _check_user(arguments.folder, run.files[0])
        folder = shared_folder(run.files[0])  # where ranks look, also if that of a host is given
        try:
            request = ask(folder, steps, run.headers)
            with held(folder, request):
                found = _wait(folder, run.files, request)
        except OSError as error:
            raise DsprofError(f"{folder}: cannot be written: {error.strerror}") from None
        print(
            f"All ranks keep steps {found.start:,} to {found.stop - 1:,} in full detail. They "
            "begin in about 10 s, or in 5 steps if those take longer. After them, run: "
            f"dsprof report {argument(folder)} --steps {found.start}:{found.stop}"
        )
        if found.start < LEAST_AHEAD:
            print(
                "No step has ended yet. If the program marks no steps, these never come: call "
                "dsprof.step() at the end of each."
            )
        return 0


def _run(folder: Path) -> RunFiles:
    """Find the newest run; only `mode: always` looks for requests.

    Raises:
        DsprofError: the run was recorded in another mode.
    """
    from dsprof.trace.rolling.parts import is_rolling
    from dsprof.trace.run import find_run

    run = find_run([folder])
    if not any(map(is_rolling, run.headers)):
        raise DsprofError(
            f"{folder}: recorded without mode: always, so its ranks ignore requests; its recorded "
            "steps already have full detail"
        )
    return run


def _check_user(folder: Path, book: Path) -> None:
    """Check that this is the user of the job: its ranks follow no other, not even root.

    Raises:
        DsprofError: it is another user.
    """
    import pwd  # Unix

    from dsprof.trace.rolling.parts import is_archived

    if is_archived(book) or (owner := book.stat().st_uid) == os.geteuid():
        return
    name = str(owner)
    with suppress(KeyError):
        name = pwd.getpwuid(owner).pw_name
    raise DsprofError(
        f"{folder}: the job runs as user {name}, and its ranks follow only requests of that user; "
        f"run this as {name}"
    )


def _wait(folder: Path, books: Sequence[Path], request: Request) -> range:
    from dsprof.trace.rolling.capture import PATIENCE_S, asked_at_s

    if (found := _answer(folder, request)) is not None:
        return found
    asked_s, started_s = asked_at_s(folder), time.monotonic()
    _check_alive(folder, books, asked_s)
    while time.monotonic() < started_s + PATIENCE_S:
        time.sleep(_LOOK_S)
        if (found := _answer(folder, request)) is not None:
            return found
    _check_alive(folder, books, asked_s + time.monotonic() - started_s)
    raise DsprofError(
        f"{folder}: no rank answered within {PATIENCE_S:.0f} s; run this as the user of the job, "
        "and check that the folder was not moved, and that /dev/shm is not full on its nodes"
    )


def _answer(folder: Path, request: Request) -> range | None:
    from dsprof.files import notes
    from dsprof.trace.rolling.capture import agreed

    notes.refresh(folder)
    found = agreed(folder, request)
    return None if found is None else found.range


def _check_alive(folder: Path, books: Sequence[Path], now_s: float) -> None:
    """Check that the job has not ended; `now_s` is by the clock of the file system.

    Raises:
        DsprofError: it has ended, or no rank writes any more.
    """
    from dsprof.trace.rolling.parts import is_archived, is_closed, written_at_s

    see = f"to see what it kept, run: dsprof report {argument(folder)}"
    if all(is_archived(book) or is_closed(book) for book in books):
        raise DsprofError(
            f"{folder}: no rank is running; if the job restarts, repeat the command; {see}"
        )
    if any(now_s - written_at_s(book) <= _SILENT_S for book in books):
        return
    silent_s = now_s - max(map(written_at_s, books))
    raise DsprofError(
        f"{folder}: no rank has written for {silent_s:,.0f} s, so the job was killed or is "
        f"stopped; {see}"
    )
