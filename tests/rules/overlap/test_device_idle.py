from __future__ import annotations

from dsprof.rules.overlap.device_idle import RULE
from dsprof.rules.rule import Severity, Status
from tests.factories.device import busy, rank, sampled
from tests.factories.trace import rank_trace, said


def test_an_idle_device_fails():
    finding = said(RULE, busy(compute=40, comm=20, world_size=1))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert "33% of the time" in finding.summary


def test_a_device_with_next_to_nothing_to_do_is_severe():
    assert said(RULE, busy(compute=4, comm=1, world_size=1)).severity is Severity.HIGH


def test_a_busy_device_passes():
    assert said(RULE, busy(compute=80, comm=15, world_size=1)).status is Status.PASS


def test_waiting_in_a_collective_is_not_idle():
    assert said(RULE, busy(compute=10, comm=85, world_size=1)).status is Status.PASS


def test_a_sample_says_nothing():
    assert said(RULE, sampled(world_size=1)).status is Status.UNKNOWN


def test_traces_without_a_device_do_not_apply():
    assert said(RULE, rank_trace()).status is Status.NOT_APPLICABLE
    assert said(RULE, rank([], world_size=1)).status is Status.NOT_APPLICABLE
