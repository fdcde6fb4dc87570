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
    """The files of a folder take `room_bytes` together: what is beyond is refused by the system."""

    def __init__(self, folder: Path, room_bytes: int) -> None:
        self._folder = folder
        self.room_bytes = room_bytes

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Limit what is written."""
        with patch("os.pwrite", self._write):
            yield

    def _left_bytes(self, at: int) -> int:
        return self.room_bytes - size_of(self._folder)

    def _write(self, file: int, data: bytes, at: int) -> int:
        left = self._left_bytes(at)
        if left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return _pwrite(file, data[:left], at)


class SmallFiles(SmallDisk):
    """Each file takes `room_bytes`, as with a limit on the size of files."""

    def _left_bytes(self, at: int) -> int:
        return self.room_bytes - at
