from __future__ import annotations

import pytest

from dsprof.environment.machine import Accelerator
from dsprof.findings.finding import Severity, Status
from dsprof.rules.environment.variable_differs_across_ranks import VariableDiffersAcrossRanks
from tests.factories.environment import judge, rank_trace

RULE = VariableDiffersAcrossRanks()


def both(name, one, other, **run):
    values = [{} if value is None else {name: value} for value in (one, other)]
    return judge(RULE, *(rank_trace(rank, v, **run) for rank, v in enumerate([values[0], *values])))


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        ("NCCL_ALGO", Severity.CRITICAL),
        ("NCCL_BUFFSIZE", Severity.HIGH),
        ("NCCL_P2P_DISABLE", Severity.MEDIUM),
        ("FI_CXI_RX_MATCH_MODE", Severity.MEDIUM),
    ],
)
def test_differing_setting_fails_and_names_the_rarer_rank(name, severity):
    (finding,) = both(name, "1", "2")
    assert (finding.status, finding.severity, finding.ranks) == (Status.FAIL, severity, (2,))
    rows = finding.evidence[0].rows
    assert [row[:3] for row in rows] == [(name, "1", "0-1"), (name, "2", "2")]


def test_variable_that_the_launcher_lost_points_to_its_file():
    (finding,) = both("FI_PROVIDER", "efa", None)
    assert finding.status is Status.FAIL
    assert "~/.deepspeed_env" in finding.action
    assert finding.evidence[0].rows[0][:3] == ("FI_PROVIDER", "not set", "2")


@pytest.mark.parametrize(
    "name",
    [
        "RANK",
        "LOCAL_RANK",
        "CUDA_VISIBLE_DEVICES",
        "SLURM_PROCID",
        "NCCL_SOCKET_IFNAME",
        "NCCL_DEBUG",
    ],
)
def test_what_differs_by_design_passes(name):
    assert both(name, "0", "1") == []


@pytest.mark.parametrize(
    ("name", "value", "status", "text"),
    [
        ("NCCL_P2P_DISABLE", "1", Status.NOT_APPLICABLE, "ranks. Covered by disabled-transport."),
        ("NCCL_ALGO", "Ring", Status.FAIL, "NCCL_ALGO differs across ranks."),
    ],
)
def test_what_another_rule_says_to_unset_is_not_to_be_set_on_every_rank(name, value, status, text):
    """It is told once, unless it is graver that ranks differ than what the value does."""
    gpus = [Accelerator("nvidia", "NVIDIA H100 80GB HBM3")] * 8
    facts = {"accelerators": gpus, "machine": {"kernel": "6.8"}}
    (finding,) = judge(RULE, rank_trace(0, {name: value}, **facts), rank_trace(1, {}, **facts))
    assert (finding.status, "Set NCCL" in finding.action) == (status, False)
    assert finding.summary.endswith(text)


def test_equal_settings_pass():
    assert both("NCCL_ALGO", "Ring", "Ring") == []


def test_unknown_effect_is_info():
    (finding,) = both("NCCL_MY_OWN_THING", "1", "2")
    assert finding.status is Status.INFO
    assert finding.summary == "NCCL_MY_OWN_THING differs across ranks, without known harm."


@pytest.mark.parametrize(("count", "rest"), [(3, ""), (4, " and 1 more")])
def test_three_are_named_and_the_others_counted(count, rest):
    names = [f"NCCL_MY_OWN_{letter}" for letter in "ABCD"[:count]]
    one, other = (dict.fromkeys(names, value) for value in "12")
    (finding,) = judge(RULE, rank_trace(0, one), rank_trace(1, other))
    assert finding.summary.startswith(f"{', '.join(names[:3])}{rest} differ across ranks")


def test_nccl_settings_of_a_run_without_nccl_are_info():
    (finding,) = both("NCCL_ALGO", "Ring", "Tree", backend="gloo", device="cpu")
    assert finding.status is Status.INFO


def test_differing_deepspeed_configuration_fails():
    configs = ({"zero_optimization": {"stage": stage}} for stage in (2, 2, 3))
    (finding,) = judge(RULE, *(rank_trace(r, engine=c) for r, c in enumerate(configs)))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert "zero_optimization.stage" in finding.summary


def test_a_rank_that_made_no_engine_has_no_other_configuration():
    config = {"zero_optimization": {"stage": 2}}
    traces = [rank_trace(0), rank_trace(1, engine=config), rank_trace(2, engine=config)]
    assert judge(RULE, *traces) == []
    fewer = rank_trace(3, engine={"bf16": {"enabled": True}})
    (finding,) = judge(RULE, *traces, fewer)
    assert finding.ranks == (3,)


def test_one_rank_is_not_applicable():
    (finding,) = judge(RULE, rank_trace(0, {"NCCL_ALGO": "Ring"}))
    assert finding.status is Status.NOT_APPLICABLE


def test_no_environment_could_not_tell():
    traces = (rank_trace(rank, recorded=False) for rank in range(2))
    (finding,) = judge(RULE, *traces)
    assert finding.status is Status.UNKNOWN
