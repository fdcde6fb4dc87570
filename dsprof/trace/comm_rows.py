"""Columns of finished collectives straight from the lines of a trace, without an object for each.

`_comm_rows.c` parses them, where it was compiled. It takes a block of lines or nothing of it: what
is not as our writer writes it is left to `dsprof.trace.reader`, which makes the same of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec
import numpy as np

from dsprof.trace.columns import FLAGS, NUMBERS, WORDS, BoolArray, IntArray
from dsprof.trace.schema import Collective

_Found = tuple[bytearray, list[str], bytearray, int]
parse: Callable[[bytearray, bytes, int, int], _Found | None] | None = None
with suppress(ImportError):
    from dsprof.trace import _comm_rows

    parse = _comm_rows.parse

_REQUIRED, _NUMBER, _FLAG, _WORD, _DECIMAL = range(5)
_BESIDE = (
    *(("name", _WORD), ("ph", _WORD), ("pid", _NUMBER), ("tid", _NUMBER)),
    *(("ts", _DECIMAL), ("dur", _DECIMAL)),
)
"""The fields beside `args`: only the name is kept, which is the operation."""
_FIELDS = [
    one for one in msgspec.structs.fields(Collective) if one.name in {*NUMBERS, *FLAGS, *WORDS}
]
_NAMES = (*(one.name for one in _FIELDS), "op")


class Rows(NamedTuple):
    """Collectives in the order of the file; `table` has a row for each of their fields."""

    table: IntArray
    words: list[str]  # what codes of words in it mean

    def __len__(self) -> int:
        return len(self.table[0])

    def column(self, name: str) -> IntArray:
        """Return the values of one field."""
        column: IntArray = self.table[_NAMES.index(name)]
        return column

    def bounded_columns(self) -> dict[str, tuple[IntArray, int, int]]:
        """Return the values of each field, the least one and the largest one."""
        lows, highs = self.table.min(axis=1).tolist(), self.table.max(axis=1).tolist()
        return dict(zip(_NAMES, zip(self.table, lows, highs, strict=True), strict=True))

    def where(self, is_wanted: BoolArray) -> Rows:
        """Return some of the collectives."""
        return Rows(self.table[:, is_wanted], self.words)


NO_ROWS = Rows(np.zeros((len(_NAMES), 0), np.int64), [])


def split(block: bytearray) -> tuple[Rows, bytearray, int] | None:
    """Return the collectives of whole lines, the other lines, and how many these are.

    None if a collective has to be read otherwise.
    """
    found = None if parse is None else parse(block, _LAYOUT, len(_FIELDS), len(_NAMES))
    if found is None:
        return None
    columns, words, others, count = found
    table = np.frombuffer(columns, np.int64).reshape(len(_NAMES), -1)
    return Rows(table, words), others, count


def _packed(key: str, kind: int, missing: int = 0) -> bytes:
    return struct.pack("=q14sBB", missing, key.encode(), len(key), kind)


def _of_args(field: msgspec.structs.FieldInfo) -> bytes:
    """Return a field as C knows it; that an absent word is empty holds for all."""
    if field.name in WORDS:
        return _packed(field.name, _WORD)
    if field.required:
        return _packed(field.name, _REQUIRED)
    return _packed(field.name, _FLAG if field.name in FLAGS else _NUMBER, int(field.default))


_LAYOUT = b"".join([*map(_of_args, _FIELDS), *(_packed(*one) for one in _BESIDE)])
