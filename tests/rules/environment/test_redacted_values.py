"""What rules say of a value that was not written: unknown, never a verdict."""

from __future__ import annotations

import pytest

from dsprof.diagnosis.sections.environment import environment_info
from dsprof.files.redaction import REDACTED
from dsprof.findings.finding import Status
from dsprof.rules import RULES
from dsprof.rules.configuration.overridden_config_value import OverriddenConfigValue
from tests.factories.environment import facts_of, judge, rank_trace

OVERRIDDEN = OverriddenConfigValue()

BY_ID = {rule.meta.id: rule for rule in RULES}

CASES = {
    "bootstrap-interface": "NCCL_SOCKET_IFNAME",
    "sync-debug-variable": "TORCH_NCCL_BLOCKING_WAIT",
    "unparsable-integer-variable": "NCCL_BUFFSIZE",
    "unknown-value": "NCCL_DEBUG",
    "forced-algorithm": "NCCL_ALGO",
    "variable-differs-across-ranks": "NCCL_ALGO",
}


@pytest.mark.parametrize("rule", CASES)
def test_a_redacted_value_is_unknown(rule: str) -> None:
    traces = [rank_trace(rank, {CASES[rule]: REDACTED}) for rank in (0, 1)]
    found = judge(BY_ID[rule], *traces)
    assert Status.FAIL not in {one.status for one in found}
    assert any(CASES[rule] in one.summary for one in found if one.status is Status.UNKNOWN)


def test_a_redacted_key_is_not_called_overridden() -> None:
    trace = rank_trace(0, engine={"train_batch_size": REDACTED, "bf16": {"enabled": True}})
    engine = trace.engines[1]
    engine.effective = {"train_batch_size": 8, "bf16": {"enabled": True}}
    assert Status.INFO not in {one.status for one in judge(OVERRIDDEN, trace)}


DIFFERS = BY_ID["variable-differs-across-ranks"]


def judged(name: str, *digests: str) -> list[tuple[Status, str]]:
    """What is found of ranks with a redacted value that has these digests; "": none."""
    traces = [
        rank_trace(rank, {name: REDACTED}, digests={name: digest} if digest else {})
        for rank, digest in enumerate(digests)
    ]
    return [(one.status, one.summary) for one in judge(DIFFERS, *traces)]


def test_equal_digests_are_no_difference() -> None:
    assert judged("NCCL_ALGO", "key-a", "key-a", "key-a") == []


def test_different_digests_are_a_difference() -> None:
    found = judged("NCCL_ALGO", "key-a", "key-b", "key-a")
    assert found == [(Status.FAIL, "NCCL_ALGO differs across ranks (values redacted).")]


def test_a_difference_of_unknown_effect_is_info() -> None:
    text = "NCCL_OWN differs across ranks (values redacted), without known harm."
    assert judged("NCCL_OWN", "key-a", "key-b") == [(Status.INFO, text)]


@pytest.mark.parametrize("digests", [("key-a", ""), ("key-a", "other-a"), ("key-a", "other-b")])
def test_digests_of_different_keys_are_not_compared(digests: tuple[str, ...]) -> None:
    assert [status for status, _ in judged("NCCL_ALGO", *digests)] == [Status.UNKNOWN]


def test_ranks_without_digest_do_not_hide_a_difference() -> None:
    assert [status for status, _ in judged("NCCL_ALGO", "key-a", "key-b", "")] == [Status.FAIL]


def test_redacted_values_are_numbered_in_the_table_of_differences() -> None:
    traces = [
        rank_trace(rank, {"NCCL_ALGO": REDACTED}, digests={"NCCL_ALGO": f"key-{digest}"})
        for rank, digest in enumerate("baab")
    ]
    info = environment_info(facts_of(*traces))
    (difference,) = info.differences
    assert difference.values == {"<redacted> (1)": [0, 3], "<redacted> (2)": [1, 2]}
    assert info.variables == {}
    (finding,) = judge(DIFFERS, *traces)
    rows = [row[:3] for row in finding.evidence[0].rows]
    assert rows == [
        ("NCCL_ALGO", "<redacted> (1)", "0, 3"),
        ("NCCL_ALGO", "<redacted> (2)", "1-2"),
    ]


@pytest.mark.parametrize(
    ("key", "status"),
    [
        ("train_batch_size", Status.FAIL),
        ("comet.api_key", Status.INFO),  # one rank of all uses it
        ("my_note", Status.INFO),
    ],
)
def test_of_a_configuration_a_known_key_that_differs_fails(key: str, status: Status) -> None:
    section, _, name = key.rpartition(".")
    config = {section: {name: REDACTED}} if section else {name: REDACTED}
    traces = [rank_trace(rank, engine=config) for rank in (0, 1)]
    for rank, trace in enumerate(traces):
        trace.engines[1].digests = {key: f"key-{rank}"}
    (finding,) = judge(DIFFERS, *traces)
    assert finding.status is status
    assert f"{key} (values redacted)." in finding.summary
    traces[1].engines[1].digests = {key: "key-0"}
    assert judge(DIFFERS, *traces) == []
