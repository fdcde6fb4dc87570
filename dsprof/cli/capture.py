"""`dsprof capture`: have a running job keep the details of its next steps."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from dsprof.errors import DsprofError, escaped

if TYPE_CHECKING:
    from dsprof.trace.rolling.capture import Request

_PATIENCE_S = 15.0
_LOOK_S = 0.2


class CaptureCommand:
    """Asks the ranks of a rolling recording for the same future steps."""

    name = "capture"
    help = "keep the next steps of a running job in full detail"
    description = """\
Ask a job that records with mode: always to keep the details of its next
steps, the same on all ranks.

  dsprof capture dsprof-out                   20 steps
  dsprof capture dsprof-out --steps 100

FOLDER is where the job writes its traces. Run it as the user of the job."""

    def prepare(self, parser: ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument(
            "folder", type=Path, metavar="FOLDER", help="folder of the job's traces"
        )
        parser.add_argument(
            "--steps", type=int, default=20, metavar="N", help="number of steps (default: 20)"
        )

    def run(self, arguments: Namespace) -> int:
        """Ask, and wait for the ranks to agree."""
        from dsprof.trace.rolling.capture import MOST_STEPS, ask

        folder, steps = arguments.folder, arguments.steps
        if not 1 <= steps <= MOST_STEPS:
            raise DsprofError(f"--steps must be 1 to {MOST_STEPS:,}, got {steps:,}")
        _check(folder)
        try:
            request = ask(folder, steps)
        except OSError as error:
            raise DsprofError(f"{folder}: cannot be written: {error.strerror}") from None
        found = _wait(folder, request)
        print(
            f"All ranks keep steps {found.start:,} to {found.stop - 1:,} in full detail. After "
            f"them, run: dsprof report {escaped(str(folder))} --steps {found.start}:{found.stop}"
        )
        return 0


def _check(folder: Path) -> None:
    """Refuse a folder of another kind of recording: its ranks would not look for requests.

    Raises:
        DsprofError: it is one.
    """
    from dsprof.trace.rolling.parts import is_rolling
    from dsprof.trace.run import find_run

    if not any(map(is_rolling, find_run([folder]).headers)):
        raise DsprofError(
            f"{folder}: recorded without mode: always, so its ranks ignore requests; its recorded "
            "steps already have full detail"
        )


def _wait(folder: Path, request: Request) -> range:
    from dsprof.trace.rolling.capture import agreed

    end_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end_s:
        if (found := agreed(folder, request)) is not None:
            return found.range
        time.sleep(_LOOK_S)
    raise DsprofError(
        f"{folder}: no rank answered within {_PATIENCE_S:.0f} s: the job has ended, runs as "
        "another user, or followed another request in the last 10 s"
    )
