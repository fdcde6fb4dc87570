"""What data-quality says of figures that are not of all steps, or not exact."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsprof.analysis.aggregates.run import Run
from dsprof.diagnosis.build import diagnosis_of
from dsprof.diagnosis.quality_lines import quality_lines
from dsprof.findings.finding import Status
from dsprof.rules.quality.data_quality import DataQuality
from dsprof.rules.runner import judge
from dsprof.trace.lines import Line
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Trailer
from dsprof.trace.selection import Selection
from tests.factories.trace import MS, captured, judged, said, summary, sync, zero_rank

RULE = DataQuality()


def test_ranks_with_only_a_part_of_the_steps_are_named():
    traces = [zero_rank(0, 3, steps=20), zero_rank(1, 3, steps=20), zero_rank(2, 3, steps=12)]
    finding = said(RULE, *traces)
    assert finding.status is Status.INFO
    said_of_means = "there, means are over the other ranks."
    assert finding.summary == f"Rank 2 lacks a part of the steps; {said_of_means}"
    made = diagnosis_of(summary(*traces), {})
    assert made.quality.partial_ranks == [2]
    assert ("note", "Ranks", "3 of 3 present; only a part of the steps of rank 2") in [
        (line.level, line.label, line.text) for line in quality_lines(made)
    ]
    assert made.quality.line.startswith("3 of 3 ranks, 1 with only a part of the steps")
    assert said(RULE, *traces[:2], zero_rank(2, 3, steps=19)).status is Status.PASS


def test_ranks_that_mark_no_step_are_told_how_to():
    """As actors do, which send what a learner trains on."""
    traces = [zero_rank(0, 3, steps=20), *(zero_rank(n, 3, steps=0) for n in (1, 2))]
    summary_of = said(RULE, *traces).summary
    assert summary_of.startswith("Ranks 1-2 mark no step: ")
    assert "call dsprof.step() on all of them" in summary_of
    assert "lack" not in summary_of
    killed = judged(RULE, traces[0], zero_rank(1, 3, steps=0, trailer=None))
    assert not any("dsprof.step()" in one.summary for one in killed)
    part = summary(*traces)
    chosen = replace(part[Run], selection=Selection(steps=range(20)))
    (of_part,) = judge(part.with_part(chosen), [RULE])
    assert of_part.summary.startswith("Ranks 1-2 lack a part of the steps")


def test_a_rank_without_the_newest_steps_of_a_rolling_recording_is_named():
    traces = [zero_rank(n, steps=100 - 9 * n) for n in range(2)]
    traces[0].newest_from, traces[1].newest_from = 92, 83
    assert said(RULE, *traces).summary.startswith("Rank 1 lacks a part of the steps; there")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"unmatched_waits": 7}, "7 waits could not be matched"),
        ({"budget_spent": True}, "The trace reached budget_mb"),
        ({"hooks_ns": 60 * MS}, "Recording took about 5 % of the time in steps (estimate)"),
        ({"given_up": 3}, "3 collectives not followed: too many others"),
        ({"failed_hooks": {"c10d": "it broke"}}, "hook c10d switched itself off: it broke"),
    ],
)
def test_what_makes_figures_less_exact_is_mentioned(fields, text):
    finding = said(RULE, zero_rank(0, trailer=Trailer("exit", **fields)), zero_rank(1))
    assert finding.status is Status.INFO
    assert text in finding.summary


@pytest.mark.parametrize(
    ("window", "text"),
    [
        (range(4, 7), "7 of 10 steps were only counted and are excluded from averages"),
        (range(0), "10 of 10 steps were only counted; the verdicts use the counters"),
    ],
)
def test_steps_in_counters_are_counted(window, text):
    finding = said(RULE, *(captured(rank, window=window, steps=10) for rank in (0, 1)))
    assert (finding.status, finding.title) == (
        Status.INFO,
        "Limits of the figures",
    )
    assert text in finding.summary


def going_on(at_ms: float, config=None, **fields) -> list[RankTrace]:
    """Return ranks of which one communicates once more after 600 ms of steps."""

    def more(number: int, start: float) -> list[Line]:
        return [sync("all_gather", at_ms, 100, seq=99, step=6)] * (number == 5)

    ends = {"trailer": Trailer(reason="exit"), **fields}
    ranks = [zero_rank(0, **ends), zero_rank(1, extra=more, **ends)]
    for rank in ranks:
        rank.header.config = config or {}
    return ranks


def test_communication_after_the_last_step_is_mentioned() -> None:
    finding = said(RULE, *going_on(2500))
    assert finding.status is Status.INFO
    told = "exclude 2.00 s in which rank 1 communicated after its last step (1 collective)"
    assert f"{told}, such as an evaluation or a checkpoint." in finding.summary


def test_communication_of_a_rank_that_failed_may_be_of_a_step_that_did_not_end() -> None:
    failed = going_on(2500, trailer=Trailer(reason="exit", exception="RuntimeError"))
    summaries = " ".join(finding.summary for finding in judged(RULE, *failed))
    assert "its last step (1 collective), such as a step that did not end." in summaries


@pytest.mark.parametrize(
    ("at_ms", "fields"),
    [
        (1000, {}),  # soon over
        (2500, {"trailer": Trailer(reason="exit", dropped=1)}),  # steps may be missing
        (2500, {"config": {"steps": 6}}),  # more were not to be recorded
    ],
)
def test_steps_may_go_on_after_the_last_one_that_is_known(at_ms, fields) -> None:
    found = judged(RULE, *going_on(at_ms, **fields))
    assert not [one for one in found if "after its last step" in one.summary]


def test_cost_below_the_threshold_is_not_mentioned():
    cheap = zero_rank(0, trailer=Trailer("exit", hooks_ns=6 * MS))
    assert said(RULE, cheap, zero_rank(1)).status is Status.PASS


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"strangers": ("old.json: of an earlier run",)}, "Skipped 1 file, named under"),
        ({"strangers": tuple("abcdefg")}, "Skipped 7 files, named under data quality."),
        ({"clock_bound_ns": 3 * MS}, "aligned to 3.00 ms"),
        ({"clock_bound_ns": None, "clock_method": "wall clocks"}, "by wall clocks"),
    ],
    ids=["stranger", "strangers", "bound", "wall clocks"],
)
def test_strangers_and_clocks_are_mentioned(changes, text):
    run = summary(zero_rank(0), zero_rank(1))
    (finding,) = judge(run.with_part(replace(run[Run], **changes)), [RULE])
    assert finding.status is Status.INFO
    assert text in finding.summary
