from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.single_rank_groups import SingleRankGroups
from tests.factories.trace import assert_reached_at, group, header, said, sync, zero_rank

RULE = SingleRankGroups()


def rank(blocked_ms: float = 2, calls: int = 3, size: int = 1, role: str = "", **fields):
    """A rank that calls collectives in a second group of `size`."""

    def extra(number, start):
        told = {"group": 2, "step": number, **fields}
        return [sync("all_reduce", start + 3 * i, blocked_ms, **told) for i in range(calls)]

    own = group(size, id=2, key="own", label="own", role=role)
    return zero_rank(extra=extra, groups={1: group(2), 2: own})


def test_calls_of_the_program_that_cost_fail():
    finding = said(RULE, rank())
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.LOW)
    assert "3 collectives per step and rank in a single-rank group" in finding.summary
    assert "3.00 MiB" in finding.summary
    assert finding.saving_ms_per_step == (4.5, 7.5), "a quarter to each side of what they hold"
    assert finding.evidence[0].rows == (("all_reduce", "own", "", "", 3.0, 1 << 20, 6.0, 6.0),)


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, rank(), calls_per_step=3.0, held_share=0.06)


@pytest.mark.parametrize(
    "fields", [{"blocked_ms": 0.1}, {"role": "expert_data"}, {"requested": "all_reduce"}]
)
def test_cheap_calls_and_those_of_a_library_are_mentioned(fields):
    finding = said(RULE, rank(**fields))
    assert finding.status is Status.INFO
    assert finding.saving_ms_per_step is None


@pytest.mark.parametrize("fields", [{"size": 2}, {"calls": 0}, {"on_wire": False}])
def test_other_calls_pass(fields):
    assert said(RULE, rank(**fields)).status is Status.PASS


def test_a_run_of_one_rank_is_not_applicable():
    trace = rank()
    trace.header = header(0, 1)
    assert said(RULE, trace).status is Status.NOT_APPLICABLE


def test_time_that_was_not_measured_is_not_promised():
    trace = rank()
    trace.header = header(device="cuda", backend="nccl")
    finding = said(RULE, trace)
    assert finding.status is Status.INFO
    assert "ms" not in finding.summary
