"""Rules on DeepSpeed's configuration where there is none, or where it is unknown."""

from __future__ import annotations

import pytest

from dsprof.findings.finding import Status
from dsprof.rules import RULES
from dsprof.rules.rule import Rule
from tests.factories.ds_config import ran, without_engine

every_rule = pytest.mark.parametrize(
    "rule",
    [one for one in RULES if one.meta.category == "configuration"],
    ids=lambda rule: rule.meta.id,
)


@every_rule
def test_no_engine_is_not_applicable(rule: Rule) -> None:
    assert without_engine(rule)[0].status is Status.NOT_APPLICABLE


@every_rule
def test_an_unrecorded_configuration_could_not_tell(rule: Rule) -> None:
    assert ran(rule, {})[0].status is Status.UNKNOWN
