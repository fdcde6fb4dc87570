"""Reads protobuf's wire format: messages preceded by their lengths, and the fields of one.

The encoding is that of https://protobuf.dev/programming-guides/encoding/; groups, which it no
longer has, are refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsprof.trace.source import Source

Value = int | bytes
"""A number, unsigned as on the wire, or what has a length."""

_BLOCK_BYTES = 1 << 20
_LONGEST_BYTES = 1 << 25
_LONGEST_VARINT = 10
_FIELDS_END = 1 << 29
_ALL_BITS = (1 << 64) - 1
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5


class Messages:
    """The messages of an open file; `is_cut` once it ended, or made no sense, within one."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.is_cut = False

    def __iter__(self) -> Iterator[bytes]:
        """Yield the messages."""
        data, place = b"", 0
        while True:
            if len(data) - place < _LONGEST_VARINT:
                data, place = data[place:] + self._source.read(_BLOCK_BYTES), 0
                if not data:
                    return
            try:
                size, place = varint(data, place)
            except ValueError:
                size = _LONGEST_BYTES + 1
            if size <= _LONGEST_BYTES and place + size > len(data):
                data, place = data[place:] + self._source.read(max(size, _BLOCK_BYTES)), 0
            if size > min(_LONGEST_BYTES, len(data) - place):
                self.is_cut = True
                return
            place += size
            yield data[place - size : place]


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yield number and value of each field of a message.

    Raises:
        ValueError: it is no message, or is cut.
    """
    place = 0
    while place < len(message):
        key, place = varint(message, place)
        kind, number = key & 7, key >> 3
        if not 0 < number < _FIELDS_END or kind not in (
            _VARINT,
            _EIGHT_BYTES,
            _LENGTH,
            _FOUR_BYTES,
        ):
            raise ValueError("no field begins like this")
        if kind == _VARINT:
            value, place = varint(message, place)
            yield number, value
            continue
        size = 8 if kind == _EIGHT_BYTES else 4
        if kind == _LENGTH:
            size, place = varint(message, place)
        if size > len(message) - place:
            raise ValueError("the message is cut")
        place += size
        content = message[place - size : place]
        yield number, content if kind == _LENGTH else int.from_bytes(content, "little")


def varint(data: bytes, place: int) -> tuple[int, int]:
    """Read a number of up to 64 bits at `place`; return it and where it ends.

    Raises:
        ValueError: there is none.
    """
    value = 0
    for shift, byte in enumerate(data[place : place + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value & _ALL_BITS, place + shift + 1
    raise ValueError("no number ends here")
