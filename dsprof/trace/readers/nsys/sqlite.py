"""Reads tables of an SQLite file that somebody else made, and runs nothing that is in it.

The file is opened read-only and immutable, so that no journal beside it is played back. Only plain
columns of plain tables are named: views, virtual tables and generated columns are code, triggers
need writes. Work and memory stay in proportion to the size of the file.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from dsprof.errors import TraceError
from dsprof.files.inputs import is_local
from dsprof.trace.source import Source

MAGIC = b"SQLite format 3\x00"

_DAMAGE = (sqlite3.Error, UnicodeDecodeError)  # the latter where a message quotes the damage
_BLOCK_BYTES = 1 << 22
_LARGEST_VALUE_BYTES = 1 << 20
_INSTRUCTIONS_ASKED = 10_000
_INSTRUCTIONS_FREE = 5_000_000
_INSTRUCTIONS_A_BYTE = 20
_FREE_S = 1.0
_S_A_BYTE = 4e-7
"""CPU time: an instruction may copy a large value, which any number of rows can name."""


class Tables:
    """An open file; a context manager. `broken` counts the reads that ended in damage."""

    def __init__(self, path: Path) -> None:
        """Open `path`, unpacked beside where it is compressed.

        Raises:
            TraceError: it cannot be opened, or is no database.
        """
        self._path = path
        self._opened = ExitStack()
        self.broken = 0
        try:
            self.nbytes, plain, nbytes = self._plain()
            self._left = (_INSTRUCTIONS_FREE + _INSTRUCTIONS_A_BYTE * nbytes) // _INSTRUCTIONS_ASKED
            self._until_s = time.thread_time() + _FREE_S + _S_A_BYTE * nbytes
            self._connection = self._connect(plain)
            self._columns = self._read_columns()
        except BaseException as error:
            with suppress(OSError):  # a copy that a full disk did not take fails again
                self._opened.close()
            if isinstance(error, (*_DAMAGE, OSError)):
                raise TraceError(f"{path}: a database that cannot be read: {error}") from None
            raise

    def __enter__(self) -> Tables:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def has(self, table: str, *columns: str) -> bool:
        """Say whether there is a plain table with all these columns."""
        return table in self._columns and self._columns[table].issuperset(columns)

    def rows(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query over tables and columns that `has` was asked for.

        Damage ends the rows, and so does a file that means to keep us busy.
        """
        try:
            yield from self._connection.execute(query, values)
        except (*_DAMAGE, OverflowError):
            self.broken += 1

    def integers(self, query: str) -> Iterator[tuple[int, ...]]:
        """Yield the rows of a query that hold integers and nothing else, as a sound file's do."""
        return (row for row in self.rows(query) if all(type(value) is int for value in row))

    def range_text(self) -> tuple[str, str]:
        """Return the text of an NVTX range `n` as SQL, and the join that it takes."""
        if self.has("NVTX_EVENTS", "textId") and self.has("StringIds", "id", "value"):
            return "coalesce(n.text, s.value)", "LEFT JOIN StringIds s ON s.id = n.textId"
        return "n.text", ""

    def _plain(self) -> tuple[int, Path, int]:
        """Return the size on disk, and the path and the size of the file as it is unpacked."""
        with Source(self._path) as source:
            if source.is_plain and is_local(self._path):
                self._check_closed()
                return source.nbytes, self._path, source.nbytes
            try:
                named = tempfile.NamedTemporaryFile(suffix=".sqlite")  # noqa: SIM115 - closed by the stack
                copy = self._opened.enter_context(named)
                while block := source.read(_BLOCK_BYTES):
                    copy.write(block)
                copy.flush()
            except OSError as error:
                raise TraceError(
                    f"{self._path}: cannot be unpacked to the folder of temporary files: "
                    f"{error.strerror}; set TMPDIR to one with more room, or unpack it yourself"
                ) from None
            return source.nbytes, Path(copy.name), copy.tell()

    def _check_closed(self) -> None:
        for ending in ("-journal", "-wal"):
            beside = Path(f"{self._path}{ending}")
            if beside.is_file() and beside.stat().st_size:
                raise TraceError(
                    f"{self._path}: not all of it is in the file, the rest is in {beside.name}; "
                    "let the program that writes it end, or export it again"
                )

    def _connect(self, path: Path) -> sqlite3.Connection:
        address = Path(os.path.realpath(path)).as_uri() + "?mode=ro&immutable=1"
        connection = sqlite3.connect(address, uri=True, isolation_level=None)
        self._opened.callback(connection.close)
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        connection.set_progress_handler(self._is_spent, _INSTRUCTIONS_ASKED)
        if sys.version_info >= (3, 11):
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE_BYTES)
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA cell_size_check=ON")
        return connection

    def _is_spent(self) -> bool:
        self._left -= 1
        return self._left < 0 or time.thread_time() > self._until_s

    def _read_columns(self) -> dict[str, set[str]]:
        plain = (
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%' "
            "AND name NOT LIKE 'sqlite_%'"
        )
        columns = "SELECT name FROM pragma_table_xinfo(?) WHERE hidden = 0"
        return {
            name: {column for (column,) in self._connection.execute(columns, (name,))}
            for (name,) in self._connection.execute(plain).fetchall()
        }
