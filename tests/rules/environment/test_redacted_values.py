"""What rules say of a value that was not written: unknown, never a verdict."""

from __future__ import annotations

import pytest

from dsprof.redaction import REDACTED
from dsprof.rules import RULES
from dsprof.rules.configuration.overridden_config_value import RULE as OVERRIDDEN
from dsprof.rules.rule import Status
from tests.factories.environment import judge, rank_trace

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
