from __future__ import annotations

from dsprof.findings.finding import Status
from dsprof.rules.environment.hidden_setting import HiddenSetting
from tests.factories.environment import judge, rank_trace

RULE = HiddenSetting()

FILE = {"/etc/nccl.conf": {"NCCL_CROSS_NIC": "1"}}


def rows(*traces):
    (finding,) = judge(RULE, *traces)
    assert finding.status is Status.INFO
    return finding.evidence[0].rows


def test_a_value_of_a_file_is_named_with_its_place():
    (row,) = rows(rank_trace(0, files=FILE), rank_trace(1, files=FILE))
    assert row == ("NCCL_CROSS_NIC", "1", "/etc/nccl.conf", "0-1", "")


def test_one_setting_is_not_several():
    (finding,) = judge(RULE, rank_trace(0, files=FILE))
    assert finding.summary == "Files or the process itself set 1 variable: NCCL_CROSS_NIC=1."


def test_a_sentence_names_a_few_settings_and_no_long_value():
    file = {"/etc/nccl.conf": {f"NCCL_{n}": "x" * 100 for n in range(6)}}
    (finding,) = judge(RULE, rank_trace(0, files=file))
    assert f": NCCL_0={'x' * 60}… (100 characters), NCCL_1=" in finding.summary
    assert finding.summary.endswith(" and 2 more.")


def test_a_file_that_the_environment_overrules():
    (row,) = rows(rank_trace(0, {"NCCL_CROSS_NIC": "2"}, files=FILE))
    assert row[-1] == "overridden by NCCL_CROSS_NIC=2"


def test_what_code_set_or_cleared():
    trace = rank_trace(0, {"NCCL_ALGO": "Ring"}, effective={"NCCL_ALGO": "", "NCCL_NET": "IB"})
    assert [row[:3] for row in rows(trace)] == [
        ("NCCL_ALGO", "", "set or cleared in the process"),
        ("NCCL_NET", "IB", "set or cleared in the process"),
    ]


def test_a_value_of_a_file_that_is_in_force_stands_once():
    trace = rank_trace(0, files=FILE, effective={"NCCL_CROSS_NIC": "1"})
    assert len(rows(trace)) == 1


def test_nothing_hidden_passes():
    assert judge(RULE, rank_trace(0, {"NCCL_CROSS_NIC": "1"})) == []
