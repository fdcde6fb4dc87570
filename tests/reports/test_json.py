"""The diagnosis as JSON."""

from __future__ import annotations

import json

import pytest

from dsprof.diagnosis.model import Diagnosis, from_json
from dsprof.reports import render
from tests.factories import diagnosis as factory


@pytest.mark.parametrize(
    "made", [factory.diagnosis(), factory.empty(), factory.hostile("<\u2028é")]
)
def test_json_reads_back_as_the_same_diagnosis(made: Diagnosis) -> None:
    assert from_json(render(made, "json"), "test") == made


def test_null_stays_null() -> None:
    total = json.loads(render(factory.empty(), "json"))["steps"]["total"]
    assert total["compute_ns"] is None
    assert total["other_ns"] == 0
