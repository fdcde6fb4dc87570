"""Tests the rule on a summary made by hand."""

from __future__ import annotations

from dsprof_example.slow_first_step import RULE, FirstSteps

from dsprof.api import RunSummary, Status


def answers(ranks: dict[int, tuple[int, float]]) -> list[Status]:
    findings = RULE.check(RunSummary([FirstSteps(ranks)]), RULE.thresholds)
    return [finding.status for finding in findings]


def test_it_fails_for_a_first_step_that_is_slow() -> None:
    assert answers({0: (2_000, 100.0)}) == [Status.FAIL]


def test_it_passes_without_one() -> None:
    assert answers({0: (900, 100.0)}) == []


def test_it_is_unknown_without_two_steps() -> None:
    assert answers({}) == [Status.UNKNOWN]
