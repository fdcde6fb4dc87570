from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.configuration.comms_logger_enabled import CommsLoggerEnabled
from tests.factories.environment import judge, rank_trace

RULE = CommsLoggerEnabled()

ZERO = {"zero_optimization": {"stage": 2}}


def with_block(block, version="0.19.8", **run):
    versions = {"deepspeed": version}
    return judge(
        RULE, rank_trace(0, engine={**ZERO, "comms_logger": block}, versions=versions, **run)
    )


def cumulative(finding):
    (row,) = (row for row in finding.evidence[0].rows if "sum" in row[0])
    return row[1] == "yes"


def test_enabled_logger_fails():
    (finding,) = with_block({"enabled": True})
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert finding.config_patch is None  # a null would break DeepSpeed's own parser


@pytest.mark.parametrize("block", [{"enabled": False}, {}])
def test_block_that_says_disabled_enables(block):
    (finding,) = with_block(block)
    assert finding.status is Status.FAIL
    assert "the presence of the block turns it on" in finding.summary


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.18.2", False), ("0.18.3", True), ("0.19.8", True), ("0.20.0", False), ("unknown", False)],
)
def test_latencies_are_sums_in_some_releases(version, expected):
    (finding,) = with_block({"enabled": True}, version)
    assert cumulative(finding) is expected


def test_on_a_cpu_it_costs_less():
    (finding,) = with_block({"enabled": True}, backend="gloo", device="cpu")
    assert finding.severity is Severity.LOW


def test_no_block_passes():
    assert judge(RULE, rank_trace(0, engine=ZERO)) == []


def test_the_block_of_any_engine_counts():
    logged = {**ZERO, "comms_logger": {}}
    (finding,) = judge(RULE, rank_trace(0, engine=ZERO, others=[logged]))
    assert finding.status is Status.FAIL


def test_unrecorded_configuration_could_not_tell():
    (finding,) = judge(RULE, rank_trace(0, engine={}))
    assert finding.status is Status.UNKNOWN


def test_block_of_another_type_is_no_error():
    (finding,) = with_block(None)
    assert finding.status is Status.FAIL
