"""Rows as tables: what a spreadsheet does with them."""

from __future__ import annotations

import csv
import io

from dsprof.api.export.tables import write_csv
from dsprof.api.loaded_run import EnvironmentFact
from dsprof.api.rows import Rows


def test_a_spreadsheet_calculates_no_text_of_a_trace() -> None:
    values = ("=1+1", "+1", "-1", "@A1", "\t=1", "1-1", "")
    facts = [EnvironmentFact(section="a", name="b", value=value) for value in values]
    file = io.BytesIO()
    write_csv(file, Rows.of(EnvironmentFact, lambda: facts))
    rows = csv.DictReader(file.getvalue().decode().splitlines())
    assert [row["value"] for row in rows] == ["'=1+1", "'+1", "'-1", "'@A1", r"\t=1", "1-1", ""]
