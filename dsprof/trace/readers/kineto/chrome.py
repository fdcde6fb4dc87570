"""Streams the events of a Chrome trace: a JSON object with `traceEvents`, or a bare array.

The text is cut where one event ends and the next begins, and each part is decoded as an array. A
part that decodes is whole: no cut inside an event or a string leaves valid JSON. What does not
decode is repaired where writers are known to err, and else halved until only the broken event is
left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeVar

import msgspec

from dsprof.errors import TraceError
from dsprof.files.decoding import UNDECODABLE
from dsprof.trace.source import Source, check_damage

_CHUNK_BYTES = 1 << 16
"""Little enough for its events to live in memory that Python holds anyway, and in a cache."""

_PATIENCE_BYTES = 1 << 22
"""An event may hold a list of objects, which looks like events: so much is read to see its end."""

_LONGEST_HEAD_BYTES = 1 << 26
_LONGEST_EVENT_BYTES = 1 << 25
_LONGEST_TAIL_BYTES = 1 << 24
_CUTS_TRIED = 3
_ENDS_TRIED = 100
_PLACES_TRIED = 1000

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_SEAM = re.compile(rb"\}\s*,\s*(?=\{)")
_END = re.compile(rb"\}\s*\]")
_NOT_A_NUMBER = re.compile(rb"([:\[,]\s*)-?(?:nan|inf(?:inity)?)(?=\s*[,}\]])", re.I)

E = TypeVar("E")


def split_head(text: bytes) -> tuple[bytes, bytes] | None:
    """Split the start of a trace before its first event; None where no event has begun.

    The first part is what precedes `traceEvents`; it is empty for a bare array.
    """
    bare = text.lstrip(b"\xef\xbb\xbf \r\n\t")
    if bare.startswith(b"["):
        return b"", bare[1:]
    if bare.startswith(b"{") and (key := _EVENTS_KEY.search(bare)):
        return bare[: key.start()], bare[key.end() :]
    return None


class Events(Generic[E]):
    """The events of an open file, decoded as `kind`; `head`, `tail` and `broken` as read so far."""

    def __init__(self, source: Source, where: str, kind: type[E]) -> None:
        """Read up to the first event.

        Raises:
            TraceError: no list of events begins where one must.
        """
        self._source = source
        self._where = where
        self._whole = 0
        self._many = msgspec.json.Decoder(list[kind], strict=False)  # type: ignore[valid-type]
        self._one = msgspec.json.Decoder(kind, strict=False)
        self.broken = 0
        self.tail = b""
        self.is_closed = False
        text = b""
        while (parts := split_head(text)) is None:
            block = self._source.read(_CHUNK_BYTES)
            if not block or len(text) > _LONGEST_HEAD_BYTES:
                raise TraceError(
                    f"{where}: no list of traceEvents: the file is truncated before it, or no "
                    "profiler trace"
                )
            text += block
        self.head, self._rest = parts

    def __iter__(self) -> Iterator[list[E]]:
        """Yield the events, a chunk at a time.

        Raises:
            TraceError: most of them are broken.
        """
        # As much again as is left over: of a long event the text is not copied for each chunk.
        while not self.is_closed and (
            block := self._source.read(max(_CHUNK_BYTES, len(self._rest)))
        ):
            self._rest += block
            if events := self._whole_events():
                self._whole += len(events)
                yield events
            if len(self._rest) > _LONGEST_EVENT_BYTES:
                self.broken += 1
                self._rest = b""
        if not self.is_closed:
            text, self._rest = self._rest, b""
            yield self._sift(text)
        while block := self._source.read(_CHUNK_BYTES):
            if len(self.tail) < _LONGEST_TAIL_BYTES:
                self.tail += block

    def _whole_events(self) -> list[E]:
        """Take the whole events off what was read."""
        cuts = list(_last_seams(self._rest))
        for end, start in cuts:
            try:
                events = self._many.decode(b"".join((b"[", memoryview(self._rest)[:end], b"]")))
            except UNDECODABLE:
                continue
            self._rest = self._rest[start:]
            return events
        if not cuts or len(self._rest) < _PATIENCE_BYTES:
            return []
        end, start = cuts[0]
        text, self._rest = self._rest[:end], self._rest[start:]
        return self._sift(text)

    def _sift(self, text: bytes) -> list[E]:
        """Decode a part of which something is broken, or which holds the end of the list."""
        try:
            return self._many.decode(b"[" + _mended(text) + b"]")
        except UNDECODABLE:
            pass
        *whole, last = _SEAM.split(text)
        events: list[E] = []
        self._halve([part + b"}" for part in whole] + [last], events)
        if self.is_closed and self._rest:
            self.tail += b"," + self._rest
            self._rest = b""
        return events

    def _halve(self, parts: list[bytes], events: list[E]) -> None:
        """Decode what can be decoded of parts that each look like an event."""
        text = b",".join(parts)
        if self.is_closed:
            self.tail += b"," + text
            return
        try:
            events += self._many.decode(b"[" + text + b"]")
        except UNDECODABLE:
            if len(parts) == 1:
                self._single(text.strip(), events)
                return
            middle = len(parts) // 2
            self._halve(parts[:middle], events)
            self._halve(parts[middle:], events)

    def _single(self, text: bytes, events: list[E]) -> None:
        """Decode one event, or the last one and the end of the list."""
        if text.startswith(b"]"):  # a list without events
            self._close(text[1:])
            return
        for end in (*islice(_END.finditer(text), _ENDS_TRIED), None):
            event = text if end is None else text[: end.start() + 1]
            try:
                events.append(self._one.decode(_mended(event)))
            except UNDECODABLE:
                if end is None or not _is_json(event):
                    continue
                self._count_broken()  # a whole event, but none that the format knows
            if end is not None:
                self._close(text[end.end() :])
            return
        if text:
            self._count_broken()

    def _count_broken(self) -> None:
        self.broken += 1
        check_damage(self._where, self.broken, self._whole)

    def _close(self, tail: bytes) -> None:
        self.is_closed = True
        self.tail = tail


def _last_seams(text: bytes) -> Iterator[tuple[int, int]]:
    """Yield end and start of the events at the last places that look like a seam."""
    place, found = len(text), 0
    for _ in range(_PLACES_TRIED):
        if (place := text.rfind(b"{", 0, place)) < 0 or found == _CUTS_TRIED:
            return
        before = text[max(0, place - 256) : place].rstrip()
        if before.endswith(b",") and (event := before[:-1].rstrip()).endswith(b"}"):
            found += 1
            yield max(0, place - 256) + len(event), place


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(_mended(text), type=msgspec.Raw)
    except UNDECODABLE:
        return False
    return True


def _mended(text: bytes) -> bytes:
    """Return text with null for NaN and infinities, which JSON has not, and valid UTF-8."""
    valid = text.decode("utf-8", "replace").encode() if not text.isascii() else text
    return _NOT_A_NUMBER.sub(rb"\1null", valid)
