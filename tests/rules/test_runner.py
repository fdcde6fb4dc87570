from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Severity, Status
from dsprof.rules import RULES
from dsprof.rules.rule import RuleMeta
from dsprof.rules.runner import judge
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import header, rank_trace, summary, sync, zero_rank


@dataclass(frozen=True)
class Limits:
    steps: int = 3


class Spoken:
    """A rule that says what it was told to say."""

    def __init__(
        self, name: str, *said, needs=(Steps,), min_steps=0, category="communication", **details
    ) -> None:
        self.meta = RuleMeta(
            id=name,
            title="All is well",
            failing_title="All is lost",
            why="",
            category=category,
            needs=needs,
            min_steps=min_steps,
        )
        self.thresholds = Limits()
        self._said = said
        self._details = details
        self.seen = None

    def check(self, run, thresholds):
        self.seen = (run, thresholds)
        return [self.meta.finding(status, "text", **self._details) for status in self._said]


class Broken(Spoken):
    def check(self, run, thresholds):
        yield self.meta.finding(Status.FAIL, "half a finding")
        raise ZeroDivisionError("by nothing")


def answer(rule, run: RunSummary | None = None, **thresholds):
    given = {rule.meta.id: Limits(**thresholds)} if thresholds else {}
    (finding,) = judge(run or summary(zero_rank()), [rule], given)
    return finding


def test_silence_is_a_pass():
    finding = answer(Spoken("quiet"))
    assert (finding.status, finding.title) == (Status.PASS, "All is well")


def test_a_failure_takes_the_failing_title_and_the_page():
    finding = answer(Spoken("loud", Status.FAIL))
    assert (finding.title, finding.docs) == ("All is lost", "rules/loud.md")


def test_a_rule_that_breaks_is_an_error_and_the_others_go_on():
    first, second = judge(summary(zero_rank()), [Broken("broken"), Spoken("quiet")])
    assert (first.status, second.status) == (Status.ERROR, Status.PASS)
    assert "ZeroDivisionError: by nothing" in first.summary


def test_too_few_steps_are_unknown():
    few = summary(zero_rank(steps=3))
    assert answer(Spoken("many", Status.FAIL, min_steps=3), few).status is Status.UNKNOWN
    assert answer(Spoken("many", Status.FAIL, min_steps=2), few).status is Status.FAIL


def test_a_missing_aggregate_is_unknown_and_named():
    finding = answer(Spoken("blind", Status.FAIL), summary(zero_rank()).only([Run]))
    assert finding.status is Status.UNKNOWN
    assert "Steps" in finding.summary


def test_a_rule_sees_its_needs_and_its_thresholds_alone():
    rule = Spoken("shy")
    answer(rule, steps=9)
    run, thresholds = rule.seen
    assert Steps in run
    assert Run not in run
    assert thresholds == Limits(steps=9)


def test_savings_never_exceed_what_was_exposed():
    # comm_ms=5 is all that each step waits.
    rules = [Spoken(name, Status.FAIL, saving_ms_per_step=(3.0, 5.0)) for name in "abc"]
    findings = judge(summary(zero_rank(comm_ms=5)), rules)
    assert [finding.saving_ms_per_step for finding in findings] == [(3.0, 5.0), (0.75, 1.25), None]


@pytest.mark.parametrize(
    ("saving_ms", "saved_bytes", "said"),
    [
        ((0.0, 0.04), None, (Status.PASS, None)),
        ((0.0, 0.04), 0, (Status.PASS, None)),
        ((0.0, 0.04), 100, (Status.INFO, None)),
        ((0.04, 0.05), None, (Status.INFO, (0.04, 0.05))),
        (None, 0, (Status.PASS, None)),
        (None, None, (Status.INFO, None)),
    ],
)
def test_a_remark_on_a_saving_that_reads_as_nothing_is_a_pass(saving_ms, saved_bytes, said):
    savings = {"saving_ms_per_step": saving_ms, "saving_bytes_per_step": saved_bytes}
    finding = answer(Spoken("a", Status.INFO, **savings))
    assert (finding.status, finding.saving_ms_per_step) == said


def test_no_saving_is_longer_than_the_step():
    rules = [Spoken("a", Status.FAIL, saving_ms_per_step=(66.0, 110.0))]
    (finding,) = judge(summary(zero_rank(step_ms=100, comm_ms=95)), rules)
    assert finding.saving_ms_per_step == (66.0, pytest.approx(100.0))


def test_a_saving_of_some_ranks_takes_their_share():
    """The mean of 5 ms is 10 ms of one rank of two, and 8 ms of these take 4 ms of the mean."""
    one = Spoken("a", Status.FAIL, saving_ms_per_step=(6.0, 10.0), exposed_per_saving=0.5)
    other = Spoken("b", Status.FAIL, saving_ms_per_step=(3.0, 5.0))
    findings = judge(summary(zero_rank(comm_ms=5)), [one, other])
    assert [finding.saving_ms_per_step for finding in findings] == [(6.0, 10.0), (0.75, 1.25)]


def test_savings_of_one_kind_never_exceed_what_that_kind_exposed():
    # Gradients wait 5 ms a step; other waits of 20 ms are not theirs to give.
    def other(number, start):
        return [sync("broadcast", start, 20, step=number)]

    claims = {"saving_ms_per_step": (3.0, 5.0), "saving_from": "gradients"}
    findings = judge(
        summary(zero_rank(comm_ms=5, extra=other)),
        [Spoken("a", Status.FAIL, **claims), Spoken("b", Status.FAIL, **claims)],
    )
    assert [finding.saving_ms_per_step for finding in findings] == [(3.0, 5.0), (0.75, 1.25)]


def test_a_remark_claims_what_faults_leave():
    one = Spoken("a", Status.INFO, saving_ms_per_step=(3.0, 5.0))
    other = Spoken("b", Status.FAIL, saving_ms_per_step=(3.0, 5.0))
    findings = judge(summary(zero_rank(comm_ms=5)), [one, other])
    assert [(f.rule, f.saving_ms_per_step) for f in findings] == [
        ("b", (3.0, 5.0)),
        ("a", (0.75, 1.25)),
    ]


def told(status, remark_ranks, fault_ranks=(1,)):
    """Return how a remark ends that is left to a rule with a fault of some ranks."""
    remark = Spoken("remark", status, ranks=remark_ranks)
    remark.meta = replace(remark.meta, left_to="fault")
    rules = [remark, Spoken("fault", Status.FAIL, ranks=fault_ranks)]
    return next(f for f in judge(summary(zero_rank()), rules) if f.rule == "remark")


def test_a_remark_is_not_made_of_what_another_rule_tells():
    finding = told(Status.INFO, (1, 2))
    assert finding.status is Status.NOT_APPLICABLE
    assert finding.summary == "text Covered by fault."
    assert told(Status.INFO, (2,)).status is Status.INFO
    assert told(Status.INFO, ()).status is Status.INFO


def test_a_failure_is_left_only_where_another_rule_tells_of_all_its_ranks():
    assert told(Status.FAIL, (1,)).status is Status.NOT_APPLICABLE
    assert told(Status.FAIL, (1, 2)).status is Status.FAIL
    assert told(Status.FAIL, ()).status is Status.FAIL


def test_a_failure_is_left_to_a_rule_that_sets_the_same_key():
    left = Spoken("left", Status.FAIL, config_patch={"zero_optimization": {"size": 1}})
    left.meta = replace(left.meta, left_to="fault")
    for key, status in (("size", Status.NOT_APPLICABLE), ("other", Status.FAIL)):
        fault = Spoken("fault", Status.FAIL, config_patch={"zero_optimization": {key: 2}})
        findings = judge(summary(zero_rank()), [left, fault])
        assert next(f for f in findings if f.rule == "left").status is status


def test_every_rule_that_remarks_are_left_to_is_there():
    ids = {rule.meta.id for rule in RULES}
    assert {rule.meta.left_to for rule in RULES} - {""} <= ids


def test_findings_come_by_severity_saving_and_confidence():
    rules = [
        Spoken("passed", Status.PASS),
        Spoken("could-not-tell", Status.UNKNOWN),
        Spoken("told", Status.INFO),
        Spoken("low", Status.FAIL, severity=Severity.LOW),
        Spoken("unsure", Status.FAIL, severity=Severity.HIGH, confidence="low"),
        Spoken("high", Status.FAIL, severity=Severity.HIGH),
        Spoken("saves", Status.FAIL, severity=Severity.LOW, saving_ms_per_step=(0.0, 2.0)),
        Spoken("not-here", Status.NOT_APPLICABLE),
    ]
    rules.append(Spoken("failed", Status.FAIL, category="quality", severity=Severity.HIGH))
    rules.append(Spoken("partial", Status.FAIL, category="quality", severity=Severity.MEDIUM))
    rules.append(Spoken("inexact", Status.INFO, category="quality"))
    order = [finding.rule for finding in judge(summary(zero_rank()), rules)]
    assert order == [
        "failed",  # what ended the run, before what would have made it faster
        "high",
        "unsure",
        "partial",
        "saves",
        "low",
        "told",
        "inexact",
        "could-not-tell",
        "not-here",
        "passed",
    ]


def test_ids_are_unique_and_every_rule_has_its_page(request):
    ids = [rule.meta.id for rule in RULES]
    assert len(set(ids)) == len(ids)
    pages = {page.stem for page in (request.config.rootpath / "docs" / "rules").glob("*.md")}
    assert set(ids) <= pages


@pytest.mark.parametrize(
    "run",
    [
        (rank_trace(),),
        (rank_trace(0, 8, trailer=None),),
        (rank_trace(head=header(device="cuda", backend="nccl")),),
        (zero_rank(steps=1),),
        (zero_rank(stage=3, op="odd_op", nbytes=0, comm_ms=0),),
    ],
    ids=["empty", "alone and cut", "device", "one step", "odd"],
)
def test_no_rule_breaks_on_poor_data(run):
    findings = judge(summary(*run), RULES)
    assert {finding.rule for finding in findings} == {rule.meta.id for rule in RULES}
    assert [one.rule for one in findings if one.status is Status.ERROR] == []


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("comm_ms", [2, 12])
def test_a_healthy_run_comes_out_without_a_failure(stage, accumulation, comm_ms):
    reductions = accumulation if stage == 2 else 1
    ranks = [
        zero_rank(rank, stage=stage, accumulation=reductions, comm_ms=comm_ms) for rank in (0, 1)
    ]
    statuses = {finding.status for finding in judge(summary(*ranks), RULES)}
    assert statuses.isdisjoint({Status.FAIL, Status.ERROR})


@pytest.mark.parametrize("status", [Status.UNKNOWN, Status.NOT_APPLICABLE, Status.ERROR])
def test_what_was_not_decided_is_a_question(status):
    assert answer(Spoken("unsure", status)).title == "All is lost?"


def test_a_remark_may_have_a_title_of_its_own():
    assert answer(Spoken("told", Status.INFO, title="Something else")).title == "Something else"


def test_of_a_kind_that_exposed_nothing_nothing_is_saved():
    claims = [
        Spoken(name, Status.FAIL, saving_ms_per_step=(3.0, 5.0), saving_from="other kind")
        for name in ("a", "b")
    ]
    findings = judge(summary(zero_rank(comm_ms=5)), claims)
    assert [finding.saving_ms_per_step for finding in findings] == [None, None]


def undecided(why: str, *ranks: RankTrace) -> set[str]:
    """The rules that name what they lack."""
    findings = judge(summary(*ranks), RULES)
    return {one.rule for one in findings if one.status is Status.UNKNOWN and why in one.summary}


def test_rules_that_take_a_mean_need_two_measured_steps():
    one, two = ([zero_rank(rank, steps=steps) for rank in range(2)] for steps in (2, 3))
    assert undecided("; 2 are needed", *two) == set()
    assert undecided("; 2 are needed", *one) == {
        "barrier-in-step",
        "communication-bound-step",
        "giant-bucket",
        "low-comm-overlap",
        "low-compute-share",
        "offload-bound-step",
        "prefetch-misses",
        "scalar-collectives",
        "unhidden-reduction",
    }


def test_rules_on_steps_do_not_apply_to_files_of_other_tools_that_mark_none():
    recorded = rank_trace(0)
    assert len(undecided("No step after warm-up; 1 is needed.", recorded)) > 5
    foreign = replace(recorded, is_foreign=True)
    assert undecided("; 1 is needed", foreign) == undecided(" are needed", foreign) == set()


def test_rules_on_the_environment_are_undecided_without_any():
    assert undecided("No rank recorded its environment.", zero_rank(0), zero_rank(1)) >= {
        "bootstrap-interface",
        "hidden-setting",
        "misspelt-variable",
        "unequal-hosts",
        "unparsable-integer-variable",
    }


def test_rules_on_sizes_are_undecided_without_any():
    ranks = [zero_rank(rank) for rank in range(2)]
    assert undecided("sizes of collectives", *ranks) == set()
    for trace in ranks:
        trace.collectives.tensors[:] = 0
    assert undecided("sizes of collectives", *ranks) == {
        "allreduce-for-sharded-gradients",
        "fp32-gradients",
        "giant-bucket",
        "scalar-collectives",
        "small-collectives",
        "unexplained-traffic",
    }


def test_rules_on_groups_are_undecided_where_no_group_is_described():
    ranks = [zero_rank(rank, groups={}) for rank in range(2)]
    assert undecided("ranks of process groups", *ranks) == {
        "allreduce-for-sharded-gradients",
        "barrier-in-step",
        "scalar-collectives",
        "small-collectives",
        "unexplained-traffic",
    }
