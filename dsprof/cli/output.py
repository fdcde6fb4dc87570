"""Where results go: files that can be written, and a standard output that may fail."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from dsprof.errors import OutputError, escaped

STANDARD_OUTPUT = Path("-")

_DUMPS = ("hang-rank", "state-rank")
"""What a recording writes beside its traces."""


def check_writable(path: Path, inputs: Iterable[Path]) -> None:
    """Refuse an output file that cannot be written, before the work that it would be for.

    Raises:
        OutputError: it is a folder, its folder is missing or read-only, or it is to be read.
    """
    from dsprof.reports.write import check_owner

    check_owner(path)
    folder = Path(os.path.realpath(path)).parent
    if os.path.isdir(path):
        problem = "it is a folder"
    elif not os.path.isdir(folder):
        problem = f"there is no folder {folder}"
    elif any(_is_read(path, given) for given in inputs):
        problem = "it is an input file"
    elif not os.access(path if os.path.exists(path) else folder, os.W_OK):
        problem = "no permission"
    else:
        return
    raise OutputError(f"cannot write {path}: {problem}; choose another place with -o FILE")


def _is_read(path: Path, given: Path) -> bool:
    """Say whether a file is the input `given`, or of the recording in that folder."""
    if not (os.path.exists(path) and os.path.exists(given)):
        return False
    if os.path.samefile(path, given):
        return True
    from dsprof.trace.host_folders import shared_folder
    from dsprof.trace.trace_files import is_trace

    names = (path.absolute(), Path(os.path.realpath(path)))
    folders = {folder for one in names for folder in (one.parent, shared_folder(one))}
    is_inside = any(os.path.samefile(folder, given) for folder in folders)
    return is_inside and (path.name.startswith(_DUMPS) or is_trace(path))


def terminal() -> dict[str, Any]:
    """Return how to render for standard output."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = {"width": get_terminal_size().columns} if is_terminal else {}
    return {**width, "colour": _has_colour(is_terminal)}


def _has_colour(is_terminal: bool) -> bool:
    """Follow no-color.org and force-color.org; of both, NO_COLOR wins."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (is_terminal and os.environ.get("TERM") != "dumb")


def tell(text: str) -> None:
    """Write a line on what happens to standard error."""
    print(f"dsprof: {escaped(text)}", file=sys.stderr, flush=True)


def print_lines(lines: Iterable[str]) -> None:
    """Write lines as `print_bytes` does; what they quote does not steer a terminal."""
    print_bytes("".join(f"{escaped(line)}\n" for line in lines).encode())


def print_bytes(data: bytes) -> None:
    """Write to standard output at once, in UTF-8 whatever the locale says.

    Raises:
        OutputError: it does not take them, for example because a disk is full.
        BrokenPipeError: the reader has gone.
    """
    if sys.stdout is None:  # as after >&- in a shell
        raise OutputError("cannot write to standard output: it is closed")
    try:
        sys.stdout.flush()
        if hasattr(sys.stdout, "buffer"):
            left = memoryview(data)
            while left:  # unbuffered (PYTHONUNBUFFERED) it may take a part, and raise nothing
                left = left[sys.stdout.buffer.write(left) :]
        else:  # in a notebook
            sys.stdout.write(data.decode(errors="replace"))
        sys.stdout.flush()
    except OSError as error:
        _silence_standard_output()
        if isinstance(error, BrokenPipeError):
            raise
        raise OutputError(f"cannot write to standard output: {error.strerror}") from None


def _silence_standard_output() -> None:
    """Let the last flush of the interpreter succeed after standard output has failed."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
