"""Columns of whole native traces, kept in the user's cache: the next command reads that.

A file of the cache is a head, which says what follows, and raw columns. It is decoded by type:
whatever is in it, nothing is executed, and what does not fit is not used.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from hashlib import blake2b
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, get_type_hints
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from dsprof._version import __version__
from dsprof.config import CACHE_VARIABLE
from dsprof.files.inputs import is_local, open_input, real_name, status_of, version_of
from dsprof.files.ownership import why_untrusted
from dsprof.trace.columns import WORDS
from dsprof.trace.rank_trace import COLUMN_NAMES, Collectives, RankTrace
from dsprof.trace.rolling.parts import is_rolling, written_parts

COLUMNS, EPOCH = ".columns", ".epoch"
"""How the names of entries end: columns of a trace, and what an earlier epoch came to."""

SMALLEST_BYTES = 1 << 22
"""A smaller trace is read as fast as its cache is found."""
LARGEST_CACHE_BYTES = 1 << 31
_FRESH_S = 3600
"""Entries used so recently are not dropped for something newer: all would drop each other."""

_LARGEST_HEAD_BYTES = 1 << 28
_ENDS_BYTES = 1 << 16
_CODES = ("op", *WORDS)
_NARROW = (np.int8, np.int16, np.int32)
_NOT_KEPT = ("path", "collectives", "beside")


class _Column(msgspec.Struct, array_like=True):
    """How a column is written; a constant one once."""

    name: str
    kept: str
    dtype: str
    is_constant: bool


class _Head(msgspec.Struct, array_like=True):
    key: str
    rows: int
    columns: list[_Column]
    words: list[str]


_HINTS = get_type_hints(RankTrace)
_KEPT = [one.name for one in fields(RankTrace) if one.name not in _NOT_KEPT]
_Records: Any = msgspec.defstruct("_Records", [(name, _HINTS[name]) for name in _KEPT])
_DTYPES = {np.dtype(one).str: np.dtype(one) for one in (*_NARROW, np.int64, np.bool_)}


def place_of(path: Path) -> Path | None:
    """Return the entry of a trace as its files are now; None where there can be none."""
    with suppress(OSError, ValueError):
        return _place(path)
    return None


def load(path: Path, place: Path | None) -> RankTrace | None:
    """Return what was read of a trace before; None if nothing is at its place."""
    with suppress(OSError, ValueError, IndexError, RecursionError, msgspec.MsgspecError):
        if place is None or why_untrusted(place):
            return None
        with open_input(place) as file:
            trace = _read(file, path, place.name)
        os.utime(place)
        return trace
    return None


def store(trace: RankTrace, path: Path, place: Path | None) -> None:
    """Keep what was read of a trace, if it is whole, large, and there is room for it.

    `place` is what `place_of` said before it was read: a file that changed meanwhile is not kept.
    """
    if place is None or trace.trailer is None or trace.nbytes < SMALLEST_BYTES:
        return
    if is_rolling(trace.header) and not is_local(path):  # to ask for each part takes as long
        return
    with suppress(OSError, ValueError, TypeError, OverflowError):  # it is read again then
        if place != _place(path):
            return
        if is_ready(place.parent) and _has_room(place.parent, trace):
            _write(trace, place)


def folder() -> Path | None:
    """Return where the cache is; None if `DSPROF_CACHE` is off, or there is no home for it."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return None if chosen == "off" else Path(chosen)
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):  # its specification has others ignored
        return Path(named) / "dsprof"
    with suppress(RuntimeError):  # a user of a container without a home
        return Path.home() / ".cache" / "dsprof"
    return None


def _place(path: Path) -> Path | None:
    """Return the file of the cache for a trace as it is now; None without a cache."""
    root = folder()
    if root is None or (is_local(path) and not path.is_file()):  # in a zip
        return None
    with open_input(path) as file:
        status = status_of(file)
        ends = _ends(file, status.nbytes) if is_local(path) else b""
    if not status.version:
        return None
    facts = f"{__version__}\n{real_name(path)}\n{status.nbytes}\n{status.version}\n".encode(
        errors="surrogateescape"
    )
    if is_local(path):
        facts += b"".join(map(_state_of, written_parts(path)))
    return root / f"{blake2b(facts + ends, digest_size=20).hexdigest()}{COLUMNS}"


def _state_of(part: Path) -> bytes:
    """Return what changes when a part of a rolling recording does, or comes."""
    try:
        return f"{version_of(part.stat())}\n".encode()
    except FileNotFoundError:
        return b"-\n"


def _ends(file: BufferedReader, nbytes: int) -> bytes:
    start = file.read(_ENDS_BYTES)
    file.seek(max(nbytes - _ENDS_BYTES, 0))
    return start + file.read(_ENDS_BYTES)


def _write(trace: RankTrace, place: Path) -> None:
    rows = trace.collectives
    columns, arrays = [], []
    for name in COLUMN_NAMES:
        column = getattr(rows, name)
        is_constant = name != "id" and len(column) > 1 and bool((column == column[0]).all())
        array = _narrowed(column[:1] if is_constant else column)
        columns.append(_Column(name, array.dtype.str, column.dtype.str, is_constant))
        arrays.append(array)
    head = msgspec.msgpack.encode(_Head(place.name, len(rows), columns, rows.words))
    records = msgspec.msgpack.encode(_Records(*(getattr(trace, name) for name in _KEPT)))
    with new_entry(place) as file:
        for part in (head, records):
            file.write(_packed(part))
        for array in arrays:
            array.tofile(file)


def is_ready(folder: Path) -> bool:
    """Say whether entries may be written to a folder of the cache, which is made if need be.

    Raises:
        OSError: it cannot be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return not why_untrusted(folder)


@contextmanager
def new_entry(place: Path) -> Iterator[BinaryIO]:
    """Open an entry for writing, which is there once all of it is written."""
    # Named as all others, so that one whose writer was killed is dropped some day.
    number, temporary = tempfile.mkstemp(dir=place.parent, suffix=place.suffix)
    try:
        with os.fdopen(number, "wb") as file:
            yield file
        os.replace(temporary, place)
    except BaseException:
        os.unlink(temporary)
        raise


def _read(file: BufferedReader, path: Path, key: str) -> RankTrace:
    """Read a file of the cache.

    Raises:
        ValueError: it is another's, cut, or not one.
    """
    head = msgspec.msgpack.decode(_part(file), type=_Head)
    records = msgspec.msgpack.decode(_part(file), type=_Records)
    names = [one.name for one in head.columns]
    if head.key != key or names != COLUMN_NAMES:
        raise ValueError("not the columns of this trace")
    if not 0 <= head.rows <= os.fstat(file.fileno()).st_size:  # an id of each is in the file
        raise ValueError("cut")
    columns = {one.name: _column(file, one, head.rows) for one in head.columns}
    _check(columns, len(head.words))
    kept = {name: getattr(records, name) for name in _KEPT}
    collectives: Any = Collectives(words=head.words, **columns)
    return RankTrace(path=str(path), collectives=collectives, **kept)


def _packed(part: bytes) -> bytes:
    return len(part).to_bytes(8, "little") + crc32(part).to_bytes(4, "little") + part


def _part(file: BufferedReader) -> bytes:
    size, checksum = (int.from_bytes(file.read(width), "little") for width in (8, 4))
    if size > _LARGEST_HEAD_BYTES:
        raise ValueError("too large")
    part = file.read(size)
    if crc32(part) != checksum:
        raise ValueError("damaged")
    return part


def _column(file: BufferedReader, column: _Column, rows: int) -> npt.NDArray[Any]:
    kept, dtype = _DTYPES.get(column.kept), _DTYPES.get(column.dtype)
    if kept is None or dtype is None or (column.is_constant and column.name == "id"):
        raise ValueError("not a column")
    count = 1 if column.is_constant else rows
    if count * kept.itemsize > os.fstat(file.fileno()).st_size:
        raise ValueError("cut")
    values = np.frombuffer(file.read(count * kept.itemsize), kept)
    if len(values) != count:
        raise ValueError("cut")
    return np.full(rows, values[0], dtype) if column.is_constant else values.astype(dtype)


def _check(columns: Mapping[str, npt.NDArray[Any]], words: int) -> None:
    """Refuse codes of unknown words, and flags that are neither true nor false."""
    for name in _CODES:
        codes = columns[name]
        if len(codes) and not 0 <= int(codes.min()) <= int(codes.max()) < words:
            raise ValueError("a code of no word")
    for column in columns.values():
        if column.dtype == np.bool_ and len(column) and column.view(np.uint8).max() > 1:
            raise ValueError("not a flag")


def _narrowed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if values.dtype == np.bool_ or not len(values):
        return values
    least, most = int(values.min()), int(values.max())
    for dtype in _NARROW:
        limits = np.iinfo(dtype)
        if limits.min <= least and most <= limits.max:
            return values.astype(dtype)
    return values


def _has_room(root: Path, trace: RankTrace) -> bool:
    """Say whether the cache has room for a trace, and drop what was used longest ago for it."""
    entries = (one for one in root.iterdir() if one.suffix in (COLUMNS, EPOCH))
    files = [(one.stat(), one) for one in entries]
    left = LARGEST_CACHE_BYTES - trace.nbytes - sum(status.st_size for status, _ in files)
    for status, file in sorted(files, key=lambda item: item[0].st_mtime_ns):
        if left >= 0 or time.time() - status.st_mtime < _FRESH_S:
            break
        file.unlink(missing_ok=True)
        left += status.st_size
    return left >= 0
