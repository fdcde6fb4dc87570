"""Runs `python -m dsprof` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def environment(*folders: Path, **variables: str) -> dict[str, str]:
    """The environment of this process, with `folders` before the checkout on PYTHONPATH."""
    path = os.pathsep.join(map(str, [*folders, ROOT]))
    # Without a buffer, what fails at the last flush a smaller delay does not show.
    return {**os.environ, "PYTHONUNBUFFERED": "", "PYTHONPATH": path, **variables}


def dsprof(
    *arguments: str | Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    **settings: Any,
) -> subprocess.CompletedProcess[str]:
    """Run the command and return what it said."""
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 240, **settings}
    return subprocess.run(
        [sys.executable, "-m", "dsprof", *map(str, arguments)],
        cwd=cwd,
        env=env or environment(),
        text=True,
        check=False,
        **settings,
    )


def install(folder: Path, name: str, version: str, **files: str) -> None:
    """Make a package look installed in `folder`: metadata alone, and what `files` holds."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for file, text in files.items():
        (info / f"{file}.txt").write_text(text)
