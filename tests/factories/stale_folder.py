"""A folder on NFS, whose client remembers for a while that a file is not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch


@contextmanager
def stale_folder(folder: Path) -> Iterator[None]:
    """What was not there when it was opened is not found until the folder itself is opened."""
    absent, real = set[Path](), os.open

    def remembering_open(path: Any, *arguments: Any, **options: Any) -> int:
        if Path(path) == folder:
            absent.clear()
        if Path(path) in absent:
            raise FileNotFoundError(path)
        try:
            return real(path, *arguments, **options)
        except FileNotFoundError:
            absent.add(Path(path))
            raise

    with patch("os.open", remembering_open):
        yield
