"""Real files of others, which lie beside the repository and never in it."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"


def folder(name: str) -> Path:
    """Return a folder of such files; skips where there is no such data at all."""
    if not FOLDER.is_dir():
        pytest.skip("../shared/data is absent")
    return FOLDER / name


def traces(name: str) -> Path:
    """Return the folder of a set of traces; skips where there is no such data at all."""
    return folder("traces") / name


def log(pattern: str) -> Path:
    """Return the one log, or table of comms_logger, that a pattern names."""
    (found,) = folder(".").glob(pattern)
    return found
