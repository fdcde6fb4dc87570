from __future__ import annotations

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsprof.findings.finding import Severity, Status
from dsprof.rules.environment.unparsable_integer_variable import UnparsableIntegerVariable
from dsprof.rules.environment.variable_values import strtoll
from dsprof.rules.knowledge.variables import integer_variables
from tests.factories.environment import judge, rank_trace

RULE = UnparsableIntegerVariable()


@pytest.mark.parametrize(
    ("value", "parsed", "severity"),
    [
        ("true", 0, Severity.HIGH),
        ("8M", 8, Severity.HIGH),
        ("on", 0, Severity.HIGH),
        ("1,2", 1, Severity.HIGH),
        ("0x", 0, Severity.HIGH),
        ("010", 8, Severity.MEDIUM),
        ("false", 0, Severity.LOW),
    ],
)
def test_misread_value_fails_and_shows_what_nccl_reads(value, parsed, severity):
    (finding,) = judge(RULE, rank_trace(0, {"NCCL_BUFFSIZE": value}))
    assert (finding.status, finding.severity) == (Status.FAIL, severity)
    assert finding.evidence[0].rows == (("NCCL_BUFFSIZE", value, parsed, "0"),)


@pytest.mark.parametrize("digits", ["9" * 5000, "0" + "7" * 5000, "0x" + "f" * 5000])
def test_numbers_without_end_are_the_largest_as_in_c(digits):
    assert strtoll(digits) == (2**63 - 1, "")
    assert strtoll("-" + digits) == (-(2**63), "")
    assert judge(RULE, rank_trace(0, {"NCCL_BUFFSIZE": digits})) == []


@pytest.mark.parametrize(
    "value", ["0", "1", "-2", "+4", "8388608", "0x400000", " 1", "1 ", "", "00"]
)
def test_integers_pass(value):
    assert judge(RULE, rank_trace(0, {"NCCL_BUFFSIZE": value})) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_ALGO", "Ring"),
        ("NCCL_NET_GDR_LEVEL", "PHB"),
        ("NCCL_DEBUG", "WARN"),
        ("NCCL_SOCKET_IFNAME", "eth0"),
        ("TORCH_NCCL_BLOCKING_WAIT", "true"),  # torch reads words
    ],
)
def test_variables_that_take_words_pass(name, value):
    assert name not in integer_variables()
    assert judge(RULE, rank_trace(0, {name: value})) == []


def test_run_without_nccl_is_info():
    trace = rank_trace(0, {"NCCL_IB_DISABLE": "yes"}, backend="gloo", device="cpu")
    (finding,) = judge(RULE, trace)
    assert (finding.status, finding.severity) == (Status.INFO, Severity.NONE)
    assert finding.title == "NCCL would misread a variable"


@given(st.text(alphabet="+-0123456789xXabcfg ._", max_size=12))
def test_parser_agrees_with_the_c_library(value):
    libc = ctypes.CDLL(None)
    libc.strtoll.restype = ctypes.c_longlong
    libc.strtoll.argtypes = (ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int)
    assert strtoll(value)[0] == libc.strtoll(value.encode(), None, 0)
