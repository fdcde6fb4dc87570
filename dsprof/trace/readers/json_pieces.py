"""Cuts a stream of JSON objects apart in bounded memory, and decodes those that are asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from dsprof.files.decoding import UNDECODABLE
from dsprof.trace.source import Source, check_damage

T = TypeVar("T")

BETWEEN_OBJECTS = re.compile(rb"(?<=\})\s*(?=\{)")
"""Two objects that no comma parts: lines of JSON, or objects that were simply appended."""

_BLOCK_BYTES = 1 << 21
_LONGEST_BYTES = 1 << 25


class Pieces:
    """The pieces between the matches of `seam`; `broken` counts those without an object.

    A seam must match nothing of an object, or only the comma between two.
    """

    def __init__(self, source: Source, where: str, seam: re.Pattern[bytes]) -> None:
        self._source, self._where = source, where
        self._seam = seam
        self._count = 0
        self.broken = 0

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces; the last may be cut."""
        rest = b""
        # Blocks double with the rest, which is searched again: the sum stays linear in the stream.
        while block := self._source.read(max(_BLOCK_BYTES, len(rest))):
            *whole, rest = self._seam.split(rest + block)
            for piece in whole:
                self._count += 1
                yield piece
            if len(rest) > _LONGEST_BYTES:
                self.broken += 1
                rest = b""
        if rest.strip():
            self._count += 1
            yield rest

    def decoded(self, piece: bytes, kind: type[T]) -> T | None:
        """Return the object of a piece, None if it is broken.

        Raises:
            TraceError: most pieces are.
        """
        try:
            return msgspec.json.decode(piece, type=kind)
        except UNDECODABLE:
            self.broken += 1
            check_damage(self._where, self.broken, self._count - self.broken)
        return None
