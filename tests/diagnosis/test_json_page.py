"""docs/reference/json.md and hangs.md name what the documents hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from dsprof.analysis.hang.model import (
    Cause,
    CauseKind,
    GroupWaits,
    HangReport,
    HangVerdict,
    Kind,
    Operation,
)
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.communication import CommunicationRow, CopyRow, FetchRow, FlushRow
from dsprof.diagnosis.parts.steps import AnnotationRow, StepParts
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.live.alerts import Alert
from dsprof.live.now import InFlight, RankNow, RunNow, State, Strip

PAGES = Path(__file__).parents[2] / "docs/reference"
ROWS = (
    AnnotationRow,
    CopyRow,
    FetchRow,
    FlushRow,
)


def named(text: str) -> set[str]:
    return set(re.findall(r"`(?:steps\.)?([a-z_-]+)`", text))


REPORT, RUNNING = map(named, (PAGES / "json.md").read_text().split("## A run while it lasts"))
HANG = named((PAGES / "hangs.md").read_text())


@pytest.mark.parametrize("struct", [Diagnosis, Finding, Table, Column, *ROWS])
def test_the_page_names_every_key(struct: type[msgspec.Struct]) -> None:
    assert set(struct.__struct_fields__) - REPORT == set()


@pytest.mark.parametrize("struct", [RunNow, RankNow, InFlight, Strip, Alert])
def test_the_page_names_every_key_of_a_run_while_it_lasts(struct: type[msgspec.Struct]) -> None:
    assert set(struct.__struct_fields__) - RUNNING == set()


@pytest.mark.parametrize("struct", [HangReport, HangVerdict, Cause, Operation, GroupWaits])
def test_the_page_names_every_key_of_a_hang(struct: type[msgspec.Struct]) -> None:
    assert set(struct.__struct_fields__) - HANG == set()


def test_the_page_names_every_word_of_a_finding() -> None:
    assert {one.value for one in (*Status, *Severity)} - REPORT == set()


def test_the_pages_name_every_state() -> None:
    assert {*get_args(State)} - RUNNING == set()
    assert {*get_args(Kind), *get_args(CauseKind)} - HANG == set()


@pytest.mark.parametrize("row", [StepParts, CommunicationRow])
def test_the_page_names_what_a_row_must_have(row: type[msgspec.Struct]) -> None:
    must = {field.name for field in msgspec.structs.fields(row) if field.required}
    assert must - REPORT - {"step"} == set()
