from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.part_filled_buckets import PartFilledBuckets
from tests.factories.trace import assert_reached_at, captured, flush, rank_trace, said, step

RULE = PartFilledBuckets()


def rank(*elements: int, cause: str = "full", capacity: int = 1_000_000, **fields):
    flushes = [
        flush(n + 1, 2 * n, 1, step=0, elements=count, capacity=capacity, cause=cause, **fields)
        for n, count in enumerate(elements)
    ]
    return rank_trace(steps=[step(0, 0, 100)], flushes=flushes)


def test_half_empty_buckets_fail_with_a_size():
    finding = said(RULE, rank(*[10_000, 600_000] * 20))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.LOW)
    assert "40 buckets per step sent as full are 30 % filled on average" in finding.summary
    assert finding.config_patch == {"zero_optimization": {"reduce_bucket_size": 2_400_000}}
    assert finding.evidence[0].rows == ((10_000, 4, 0.01, 20.0), (600_000, 4, 0.6, 20.0))


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, rank(*[10_000, 600_000] * 20), fill=0.305, flushes_per_step=40.0)


def test_a_gradient_that_goes_by_itself_asks_for_no_larger_bucket():
    finding = said(RULE, rank(38_000_000, *[10_000, 600_000] * 20))
    assert finding.config_patch == {"zero_optimization": {"reduce_bucket_size": 2_400_000}}


def test_no_bucket_is_made_a_giant():
    finding = said(RULE, rank(*[10_000, 600_000] * 10))
    assert finding.config_patch == {"zero_optimization": {"reduce_bucket_size": 1_525_000}}
    finding = said(RULE, rank(*[10_000, 600_000] * 2))
    assert (finding.status, finding.config_patch) == (Status.INFO, None)


@pytest.mark.parametrize(
    "trace",
    [
        rank(*[900_000] * 6),
        rank(10_000, 600_000, 10_000),
        rank(*[10_000] * 6, cause="end of backward"),
        rank(*[5_000_000] * 6),
    ],
    ids=["filled", "few", "never full", "larger than the bucket"],
)
def test_other_buckets_pass(trace):
    assert said(RULE, trace).status is Status.PASS


@pytest.mark.parametrize("fields", [{"library": "DDP"}, {"library": "FSDP2"}, {"capacity": 0}])
def test_buckets_that_are_not_zeros_or_have_no_bound_do_not_apply(fields):
    assert said(RULE, rank(*[10_000] * 6, **fields)).status is Status.NOT_APPLICABLE


def test_counters_do_not_tell():
    assert said(RULE, captured(window=range(0), steps=8)).status is Status.UNKNOWN


def test_sizes_that_were_lost_do_not_break_the_rule():
    assert said(RULE, rank(0, 0, 0, 0)).status is Status.UNKNOWN
