"""The newest lines of a rolling recording."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from dsprof.trace.rolling.parts import TAILS, part_of
from dsprof.trace.writing.disk import WRITTEN_BYTES, OwnFile, create


class Extent(NamedTuple):
    """Where lines are."""

    segment: int
    start: int
    end: int


class Tails:
    """The newest lines, in two files by turns: when the newer is full the older begins anew."""

    def __init__(self, book: Path, most_bytes: int, begin: Callable[[int], bytes]) -> None:
        """`begin` gives the first line of a segment, by its number."""
        self._most_bytes, self._begin = most_bytes, begin
        self._files: list[OwnFile] = []
        try:
            for ending in TAILS:
                self._files.append(create(part_of(book, ending)))
        except OSError:
            self.close()
            raise
        self.segment = 0
        self._unwritten = bytearray()
        self._refused: OSError | None = None
        self._put(begin(0))

    def write(self, data: bytes) -> Extent:
        """Append lines, in the next segment if this one is full; `flush` writes them."""
        if self._end + len(data) > self._most_bytes:
            self._attempt(self._begin_next)
        start = self._end
        self._put(data)
        return Extent(self.segment, start, start + len(data))

    def read(self, extent: Extent) -> bytes:
        """Return lines of a segment that is still there."""
        self.flush()
        file = self._files[extent.segment % len(self._files)]
        return file.read(extent.end - extent.start, extent.start)

    def flush(self) -> None:
        """Write the lines so far, in one call.

        Raises:
            OSError: the disk refuses them, or refused some since the last call. All are kept.
        """
        error, self._refused = self._refused, None
        if error is not None:
            raise error
        if self._unwritten:
            self._newest.append(bytes(self._unwritten))
            self._unwritten.clear()

    def try_room(self) -> None:
        """Check that the disk takes more.

        Raises:
            OSError: it does not.
        """
        self._newest.check_room()

    def give_up_lines(self) -> bytes:
        """Remove the last lines to make room on the disk; return them."""
        lines = self._newest.give_up_lines() + self._unwritten
        self._unwritten.clear()
        return lines

    def touch(self) -> None:
        """Show that the files are in use; raises what `OwnFile.touch` does."""
        for file in self._files:
            file.touch()

    def close(self) -> None:
        """Close the files."""
        while self._files:
            self._files.pop().close()

    @property
    def _newest(self) -> OwnFile:
        return self._files[self.segment % len(self._files)]

    @property
    def _end(self) -> int:
        """Where the next line begins in the newer file, once all before it are written."""
        return self._newest.nbytes + len(self._unwritten)

    def _put(self, data: bytes) -> None:
        self._unwritten += data
        if len(self._unwritten) >= WRITTEN_BYTES:
            self._attempt(self.flush)

    def _begin_next(self) -> None:
        self.flush()
        first = self._begin(self.segment + 1)
        self._files[(self.segment + 1) % len(self._files)].cut(0)
        self.segment += 1
        self._put(first)

    def _attempt(self, act: Callable[[], None]) -> None:
        """Keep an error for `flush`: raised in `write` it would lose the lines of the caller."""
        if self._refused is None:
            try:
                act()
            except OSError as error:
                self._refused = error
