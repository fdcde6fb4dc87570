"""Rows as a table of other programs, one part in memory at a time."""

from __future__ import annotations

import csv
import io
from typing import Any, BinaryIO

from dsprof.api.rows import Rows, installed
from dsprof.errors import escaped

_FORMULA = ("=", "+", "-", "@")


def write_csv(file: BinaryIO, rows: Rows[Any]) -> None:
    """Write CSV with a line of headings; what is unknown is empty."""
    text = io.TextIOWrapper(file, "utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(rows.columns)
    for part in rows.plain_parts():
        columns = ([_harmless(value) for value in values] for values in part.values())
        writer.writerows(zip(*columns, strict=True))
    text.detach()  # which flushes, and leaves the file open


def _harmless(value: Any) -> Any:
    """Escape what steers a terminal; put an apostrophe before what a spreadsheet calculates."""
    if not isinstance(value, str):
        return value
    text = escaped(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def write_parquet(file: BinaryIO, rows: Rows[Any]) -> None:
    """Write Parquet, a row group for each part.

    Raises:
        DsprofError: pyarrow is not installed.
    """
    arrow, parquet = installed("pyarrow"), installed("pyarrow.parquet")
    names = {bool: arrow.bool_(), int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
    schema = arrow.schema([(name, names[kind]) for name, kind in rows.plain_types.items()])
    with parquet.ParquetWriter(file, schema) as writer:
        for part in rows.plain_parts():
            writer.write_table(arrow.table(part, schema=schema))
