"""Rules that a diagnosis names by their ids are there, with the thresholds that pages show."""

from __future__ import annotations

import pytest

from dsprof.diagnosis import headline
from dsprof.diagnosis.build import diagnosis_of
from dsprof.diagnosis.sections import communication
from dsprof.rules import RULES
from tests.factories.trace import summary, zero_rank

IDS = {rule.meta.id for rule in RULES}


@pytest.mark.parametrize("rule", [headline._BOUND, headline._LATE, communication._RULE])
def test_the_rule_is_there(rule: str) -> None:
    assert rule in IDS


@pytest.mark.parametrize("name", ["clock_bound_ms", "cost_share"])
def test_thresholds_that_the_page_shows_are_in_the_diagnosis(name: str) -> None:
    assert diagnosis_of(summary(zero_rank(0)), {}).threshold("data-quality", name) is not None


def test_a_threshold_that_no_rule_has_is_none() -> None:
    assert diagnosis_of(summary(zero_rank(0)), {}).threshold("data-quality", "no-such-name") is None
