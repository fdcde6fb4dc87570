"""Replaces this process by another program."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NoReturn

from dsprof.errors import DsprofError


def become(command: list[str], variables: Mapping[str, str]) -> NoReturn:
    """Replace this process by a command.

    Raises:
        DsprofError: it cannot be started.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: it came closed
        stream.flush()
    try:
        os.execvpe(command[0], command, variables)
    except OSError as error:
        name, launch = command[0], "type its launcher, too: dsprof run -- torchrun"
        remedy = f"; {launch} {name}" if name.endswith(".py") else ""
        raise DsprofError(f"cannot start {name}: {error.strerror}{remedy}") from None
    except ValueError as error:  # nothing is named, or a NUL is in it
        raise DsprofError(f"cannot start {command[0]!r}: {error}") from None
