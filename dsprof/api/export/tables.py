"""Rows as a table of other programs, one part in memory at a time."""

from __future__ import annotations

import csv
import io
from typing import Any, BinaryIO

from dsprof.api.rows import Rows, installed

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_csv(file: BinaryIO, rows: Rows[Any]) -> None:
    """Write CSV with a line of headings; what is unknown is empty."""
    text = io.TextIOWrapper(file, "utf-8", errors="replace", newline="")
    writer = csv.writer(text)
    writer.writerow(rows.columns)
    for part in rows.plain_parts():
        columns = ([_no_formula(value) for value in values] for values in part.values())
        writer.writerows(zip(*columns, strict=True))
    text.detach()  # which flushes, and leaves the file open


def _no_formula(value: Any) -> Any:
    """Put an apostrophe before text that a spreadsheet would calculate."""
    return f"'{value}" if isinstance(value, str) and value[:1] in _FORMULA else value


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
