"""`dsprof watch`: a run in a terminal while it lasts."""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from dsprof.cli.loading import add_paths, local_path
from dsprof.cli.output import print_bytes, tell
from dsprof.errors import DsprofError, TraceError

if TYPE_CHECKING:
    from dsprof.live.watching import Watched

_POLL_S = 0.1
_WAIT_S = 1.0


class WatchCommand:
    """Follows the traces of a run."""

    name = "watch"
    help = "show a run in the terminal while it lasts"
    description = """\
Follow a run while it records: pace, parts of a step, ranks by steps,
collectives in flight, memory, and the findings so far. It only reads the
traces; the training does no extra work.

  dsprof watch dsprof-out                          q quits, arrows choose
  dsprof watch dsprof-out --once                   print the state once, as text
  dsprof watch dsprof-out --once --format json     the same for programs"""

    def prepare(self, parser: ArgumentParser) -> None:
        add_paths(parser, "folder that the run records into", local_path)
        parser.add_argument("--once", action="store_true", help="print the state once and exit")
        parser.add_argument(
            "--format",
            choices=("text", "json"),
            default="text",
            help="with --once: text or json (default: text)",
        )

    def run(self, arguments: Namespace) -> int:
        """Show the run."""
        from dsprof.live.watching import Watched

        if arguments.once:
            _print(Watched(arguments.paths), arguments.format)
        elif arguments.format == "json":
            raise DsprofError("--format json works only with --once")
        elif sys.stdout is None or not sys.stdout.isatty():
            raise DsprofError("standard output is not a terminal; add --once to print the state")
        else:
            _app(arguments.paths)
        return 0


def found(paths: Sequence[Path]) -> Watched:
    """Return the run; wait for it while none is recorded yet, or none can be read, and say why.

    Raises:
        TraceError: a path is a file that cannot be read.
    """
    from dsprof.live.watching import NotGrowingError, Watched

    names = ", ".join(map(str, paths))
    said = None
    while True:
        try:
            return Watched(paths)
        except NotGrowingError:
            raise
        except TraceError as error:
            if any(path.exists() and not path.is_dir() for path in paths):
                raise
            why = "" if _is_nothing_there(paths) else f"; {error}"
        if why != said:
            tell(f"waiting for the first trace in {names}; Ctrl-C quits{why}")
            said = why
        time.sleep(_WAIT_S)


def _is_nothing_there(folders: Sequence[Path]) -> bool:
    """Say whether no trace has begun: a folder is missing, or has no trace but empty ones."""
    from dsprof.trace.trace_files import trace_files

    there = []
    try:
        for folder in folders:
            with suppress(FileNotFoundError):
                os.scandir(folder).close()
                there.append(folder)
        files, unopened = trace_files(there)
        return not unopened and not any(os.path.getsize(file) for file in files)
    except TraceError:  # they have no traces
        return True
    except OSError:
        return False


def _print(watched: Watched, form: str) -> None:
    from dsprof.live.judging import Standing
    from dsprof.live.screen import Chosen, as_text, screen

    watched.judge.standing = Standing(persistence=1)  # no second judgement follows
    try:
        watched.look()
        while watched.is_behind or watched.judge.is_busy:
            time.sleep(0 if watched.is_behind else _POLL_S)
            watched.look()
    finally:
        watched.judge.close()
    now = watched.now()
    if form == "json":
        from dsprof.files.json_documents import json_document

        print_bytes(json_document(now) + b"\n")
    else:
        width = get_terminal_size().columns
        print_bytes(as_text(screen(now, width, len(now.ranks) + 60, Chosen())).encode())


def _app(paths: Sequence[Path]) -> None:
    try:
        from dsprof.live.terminal import WatchApp
    except ImportError:
        raise DsprofError(
            "the terminal view needs textual: pip install 'dsprof[watch]', or add --once"
        ) from None
    WatchApp(found(paths)).run()
