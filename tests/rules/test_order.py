"""The order of rules: each declares its own, and it decides who owns a saving that two claim."""

from __future__ import annotations

from itertools import groupby

from dsprof.rules import RULES
from dsprof.rules.runner import _place, judge
from tests.factories.trace import rank_trace, summary

ORDERS = {rule.meta.id: rule.meta.order for rule in RULES}


def test_no_two_built_in_rules_leave_their_order_to_chance() -> None:
    assert list(ORDERS.values()) == sorted(set(ORDERS.values()))


def test_findings_of_equal_weight_follow_that_order() -> None:
    for _, group in groupby(judge(summary(rank_trace()), RULES), _place):
        orders = [ORDERS[finding.rule] for finding in group]
        assert orders == sorted(orders)
