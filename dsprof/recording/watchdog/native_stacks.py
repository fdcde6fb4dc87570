"""Stacks in C++, by py-spy where it is installed; it stops the process for a moment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

_PATIENCE_S = 20.0
_LARGEST = 200_000


def native_stacks(pid: int) -> str:
    """Return what py-spy says; "" where it is not installed, or may not look."""
    beside = Path(sys.executable).with_name("py-spy")
    tool = shutil.which("py-spy") or (str(beside) if beside.exists() else "")
    if not tool:
        return ""
    command = [tool, "dump", "--native", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_PATIENCE_S, check=False, text=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout[:_LARGEST]
