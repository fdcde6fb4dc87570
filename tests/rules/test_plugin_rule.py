"""What a rule of another package must be, and must answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Finding, Status
from dsprof.rules.plugin_rule import accepted
from dsprof.rules.rule import RuleMeta
from tests.factories.trace import rank_trace, summary

META = RuleMeta(
    id="theirs", title="t", failing_title="f", why="w", category="steps", needs=(Steps,)
)


@dataclass(frozen=True)
class Limits:
    share: float = 0.5


@dataclass(frozen=True)
class Required:
    share: float


@dataclass(frozen=True)
class Odd:
    share: float = "half"  # type: ignore[assignment]


class Theirs:
    def __init__(self, meta: Any = META, thresholds: Any = None, **finding: Any) -> None:
        self.meta = meta
        self.thresholds = Limits() if thresholds is None else thresholds
        self.finding = finding

    def check(self, run: RunSummary, thresholds: Any) -> Iterable[Finding]:
        yield self.meta.finding(Status.FAIL, "x", **self.finding)


def answer(**finding: Any) -> Finding:
    rule = accepted(Theirs(**finding), "package")
    (found,) = rule.check(summary(rank_trace()), rule.thresholds)
    return found


@pytest.mark.parametrize("length", [1, 60])
def test_a_rule_is_accepted_with_its_package(length: int) -> None:
    rule = accepted(Theirs(replace(META, id="a" * length)), "package")
    assert (rule.meta.id, rule.meta.package) == ("a" * length, "package")


def test_its_finding_has_its_name_and_no_page_of_ours() -> None:
    meta = replace(META, id="late-rank", category="memory")
    finding = answer(meta=meta)
    assert (finding.rule, finding.category, finding.docs) == ("late-rank", "memory", "")


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (Theirs("meta"), "no RuleMeta"),
        (Theirs(replace(META, why=1)), "its why must be text"),
        (Theirs(replace(META, id="Theirs")), "lower-case letters"),
        (Theirs(replace(META, id="a" * 61)), "at most 60"),
        (Theirs(replace(META, order=1.5)), "whole numbers"),
        (Theirs(replace(META, min_steps=True)), "whole numbers"),
        (Theirs(replace(META, needs=(int,))), "subclass of Aggregate"),
        (Theirs(replace(META, needs=(Steps({}, {}),))), "subclass of Aggregate"),
        (Theirs(thresholds=Limits), "instance of a frozen dataclass"),
        (Theirs(thresholds=0.5), "instance of a frozen dataclass"),
        (Theirs(thresholds=Required(0.5)), "must have a default"),
        (Theirs(thresholds=Odd()), "share"),
    ],
)
def test_what_is_no_rule_is_refused(rule: Any, reason: str) -> None:
    with pytest.raises((TypeError, ValueError), match=reason):
        accepted(rule, "package")


@pytest.mark.parametrize("saving", [(0.0, 0.5), (2.0, 2.0), None])
@pytest.mark.parametrize("exposed", [0.0, 0.5])
def test_savings_from_nothing_on_are_taken(saving: Any, exposed: float) -> None:
    assert answer(saving_ms_per_step=saving, exposed_per_saving=exposed)


@pytest.mark.parametrize(
    "field",
    [{"saving_ms_per_step": range_} for range_ in ((0.0, 0.0), (-1.0, 2.0), (3.0, 2.0))]
    + [{"saving_ms_per_step": (1.0, float("inf"))}]
    + [
        {name: value}
        for name in ("exposed_per_saving", "explains_ms")
        for value in (-0.1, float("inf"), float("nan"))
    ],
)
def test_impossible_numbers_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        answer(**field)


def raising(error: BaseException) -> Callable[..., Any]:
    def check(run: RunSummary, thresholds: Any) -> Any:
        raise error

    return check


def test_a_rule_that_exits_has_failed() -> None:
    theirs = Theirs()
    theirs.check = raising(SystemExit(7))  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match=r"sys\.exit"):
        accepted(theirs, "package").check(summary(rank_trace()), Limits())


def test_what_is_no_finding_is_refused() -> None:
    theirs = Theirs()
    theirs.check = lambda run, thresholds: ["text"]  # type: ignore[method-assign, list-item]
    with pytest.raises(TypeError, match="got str"):
        accepted(theirs, "package").check(summary(rank_trace()), Limits())
