"""docs/reference/json.md names what the document holds."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from dsprof.diagnosis import model
from dsprof.findings.finding import Column, Finding, Severity, Status, Table

PAGE = Path(__file__).parents[2] / "docs/reference/json.md"
NAMED = frozenset(re.findall(r"`(?:steps\.)?([a-z_-]+)`", PAGE.read_text()))
ROWS = (
    model.AnnotationRow,
    model.CopyRow,
    model.FetchRow,
    model.FlushRow,
)


@pytest.mark.parametrize("struct", [model.Diagnosis, Finding, Table, Column, *ROWS])
def test_the_page_names_every_key(struct: type[msgspec.Struct]) -> None:
    assert set(struct.__struct_fields__) - NAMED == set()


def test_the_page_names_every_word_of_a_finding() -> None:
    assert {one.value for one in (*Status, *Severity)} - NAMED == set()


@pytest.mark.parametrize("row", [model.StepParts, model.CommunicationRow])
def test_the_page_names_what_a_row_must_have(row: type[msgspec.Struct]) -> None:
    must = {field.name for field in msgspec.structs.fields(row) if field.required}
    assert must - NAMED - {"step"} == set()
