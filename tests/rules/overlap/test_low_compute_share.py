from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.overlap.low_compute_share import LowComputeShare
from tests.factories.device import busy
from tests.factories.trace import (
    assert_reached_at,
    captured,
    copy,
    header,
    ns,
    said,
    span,
    zero_rank,
)

RULE = LowComputeShare()


def idling(outside: float, before: float = 0, number: int = 0):
    """A rank of which so much of a step of 100 ms is in no phase, `before` of it before forward."""
    half, at = 50 * (1 - outside), 100 * before
    spans = [span("forward", 100 * n + at, 100 * n + at + half, n) for n in range(6)]
    spans += [span("backward", 100 * n + at + half, 100 * n + at + 2 * half, n) for n in range(6)]
    return zero_rank(number, spans=spans, comm_ms=1)


def test_a_loop_that_does_something_else_fails():
    finding = said(RULE, idling(0.6))
    assert finding.status is Status.FAIL
    assert finding.title == "Much of the step lies outside forward, backward and step"
    assert finding.severity is Severity.LOW  # what lies there, the record does not say
    assert "outside forward, backward and step" in finding.summary
    assert finding.evidence[0].rows == (
        ("computation", 40.0, 0.4),
        ("exposed communication", 1.0, 0.01),
        ("outside forward, backward and step", 59.0, 0.59),
    )


@pytest.mark.parametrize("is_before_forward", [False, True])
def test_one_long_step_is_not_what_the_loop_does_in_each(is_before_forward):
    """As one that waits for a checkpoint, and takes most of a short recording."""
    trace = idling(0.05)
    trace.steps[-1].end_ns += ns(2000)
    for one in trace.spans:
        if is_before_forward and one.step == trace.steps[-1].step:
            one.start_ns, one.end_ns = one.start_ns + ns(2000), one.end_ns + ns(2000)
    finding = said(RULE, trace)
    assert finding.status is Status.INFO
    assert finding.cause.endswith("in the median step it is 5 %.")
    assert "loader" not in finding.action


def test_a_span_that_the_program_named_is_named():
    trace = idling(0.6)
    trace.spans += [
        span("load", 100 * n + 45, 100 * n + 75, n, is_annotation=True) for n in range(6)
    ]
    assert "annotate" in said(RULE, idling(0.6)).action
    finding = said(RULE, trace)
    assert "annotate" not in finding.action
    assert finding.summary.endswith(' "load" takes 30.0 ms of it per step.')
    assert finding.severity is Severity.MEDIUM
    assert finding.fix == 'Shorten "load", or run it beside the step'


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, idling(0.6), compute_share=0.4, outside_share=0.59)
    assert_reached_at(RULE, idling(0.2, before=0.125), before_share=0.125, before_fail_share=0.125)


def test_waits_are_told_and_left_to_rules_of_their_own():
    finding = said(RULE, zero_rank(comm_ms=35))
    assert finding.status is Status.INFO
    assert "55 % of the step is computation" in finding.summary
    assert "35 % exposed communication, 10 % outside" in finding.summary
    assert finding.problem == "55 % of the step is computation"
    assert finding.cause == "The largest other part is exposed communication."
    shares = {row[0]: row[2] for row in finding.evidence[0].rows}
    assert abs(sum(shares.values()) - 1) < 1e-9


@pytest.mark.parametrize(
    ("before", "status"), [(0.05, Status.PASS), (0.15, Status.INFO), (0.21, Status.FAIL)]
)
def test_what_lies_before_forward_is_no_computation_of_a_loss(before, status):
    """A data loader without workers takes 21 % of a step that is computation for the rest."""
    finding = said(RULE, idling(0.21, before))
    assert finding.status is status
    if status is Status.FAIL:
        assert finding.problem == "21 % of the step passes before forward"
        assert finding.summary.endswith(
            "21.0 ms per step (21 %) pass before forwards, outside all phases."
        )


@pytest.mark.parametrize(
    ("before", "problem", "severity"),
    [
        (0.71, "71 % of the step passes before forward", Severity.MEDIUM),
        (0.3, "71 % of the step is outside its phases", Severity.LOW),
    ],
)
def test_most_of_a_step_before_forward_needs_no_name(before, problem, severity):
    """A loader that is waited for lies there; what was not marked may lie anywhere."""
    finding = said(RULE, idling(0.72, before))
    assert (finding.problem, finding.severity) == (problem, severity)
    assert finding.status is Status.FAIL


def test_the_time_before_forward_is_a_mean_over_ranks_and_has_the_name_of_a_span():
    traces = [idling(0.31, before, number) for number, before in enumerate((0.3, 0.2))]
    finding = said(RULE, *traces)
    assert "25.0 ms per step (25 %) pass before forwards" in finding.summary
    assert finding.severity is Severity.LOW
    for trace in traces:
        at = (100 * n for n in range(6))
        trace.spans += [span("load", t, t + 20, t // 100, is_annotation=True) for t in at]
    finding = said(RULE, *traces)
    assert finding.fix == 'Shorten "load", or run it beside the step'
    assert finding.severity is Severity.MEDIUM


def test_a_part_outside_the_phases_has_the_advice_of_a_failure():
    finding = said(RULE, idling(0.35))
    assert finding.status is Status.INFO
    assert finding.action == said(RULE, idling(0.6)).action


def test_copies_are_a_part():
    copies = [copy(100 * n, 30, step=n) for n in range(6)]
    assert "30 % copies" in said(RULE, zero_rank(copies=copies)).summary


def test_enough_computation_passes_with_the_parts():
    finding = said(RULE, zero_rank(comm_ms=5))
    assert finding.status is Status.PASS
    assert "85 % of the step" in finding.summary


def test_what_was_not_measurable_is_unknown():
    head = header(device="cuda", backend="nccl")
    for trace in (
        zero_rank(head=head),
        zero_rank(spans=[]),
        zero_rank(spans=[span("step", 100 * n, 100 * n + 5, n) for n in range(6)]),
        captured(window=range(0), steps=8),
    ):
        assert said(RULE, trace).status is Status.UNKNOWN


def test_a_profile_needs_no_phases():
    assert said(RULE, busy(compute=40, comm=20, world_size=1)).status is Status.INFO
