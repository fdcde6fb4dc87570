"""A disk that fills up and has room again."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from tests.factories.month import size_of

_pwrite = os.pwrite


class SmallDisk:
    """Files of a folder take at most `room_bytes` in total; the system refuses further data."""

    def __init__(self, folder: Path, room_bytes: int) -> None:
        self._folder = folder
        self.room_bytes = room_bytes

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Limit what is written to the folder."""
        with patch("os.pwrite", self._write):
            yield

    def _write(self, file: int, data: bytes, at: int) -> int:
        left = self.room_bytes - size_of(self._folder)
        if left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return _pwrite(file, data[:left], at)


class LargestFile:
    """A file takes `most_bytes`; the system refuses more, as with RLIMIT_FSIZE."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Limit what is written to a file."""
        with patch("os.pwrite", self._write):
            yield

    def _write(self, file: int, data: bytes, at: int) -> int:
        left = self.most_bytes - at
        if left <= 0:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return _pwrite(file, data[:left], at)
