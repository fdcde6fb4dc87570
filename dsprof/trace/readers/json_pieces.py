"""Cuts a stream of JSON objects apart without decoding it, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsprof.trace.source import Source

BETWEEN_OBJECTS = re.compile(rb"(?<=\})\s*(?=\{)")
"""Two objects that no comma parts: lines of JSON, or objects that were simply appended."""

_BLOCK_BYTES = 1 << 21
_LONGEST_BYTES = 1 << 25


class Pieces:
    """The pieces between the matches of `seam`; `too_long` counts what was longer than any object.

    A seam must match nothing of an object, or only the comma between two.
    """

    def __init__(self, source: Source, seam: re.Pattern[bytes]) -> None:
        self._source = source
        self._seam = seam
        self.too_long = 0

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces; the last may be cut."""
        rest = b""
        while block := self._source.read(_BLOCK_BYTES):
            *whole, rest = self._seam.split(rest + block)
            yield from whole
            if len(rest) > _LONGEST_BYTES:
                self.too_long += 1
                rest = b""
        if rest.strip():
            yield rest
