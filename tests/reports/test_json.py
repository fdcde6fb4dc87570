"""The diagnosis as JSON."""

from __future__ import annotations

import json

import pytest

from dsprof.diagnosis.document import from_json
from dsprof.diagnosis.model import Diagnosis
from dsprof.reports import render
from tests.factories import diagnosis as factory


@pytest.mark.parametrize("made", [factory.diagnosis(), factory.empty()])
def test_json_reads_back_as_the_same_diagnosis(made: Diagnosis) -> None:
    assert from_json(render(made, "json"), "test") == made


def test_settings_of_odd_names_are_redacted_once_they_are_read() -> None:
    """A release that did not redact may have saved them; no later reading changes more."""
    saved = render(factory.hostile("<\u2028é"), "json")
    read = from_json(saved, "test")
    assert "<redacted>" in read.environment.variables
    assert from_json(render(read, "json"), "test") == read


def test_null_stays_null() -> None:
    total = json.loads(render(factory.empty(), "json"))["steps"]["total"]
    assert total["compute_ns"] is None
    assert total["other_ns"] == 0
