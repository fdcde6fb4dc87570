from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.buffer_broadcasts import BufferBroadcasts
from dsprof.trace.schema import BucketLayout
from tests.factories.trace import assert_reached_at, group, said, sync, zero_rank

RULE = BufferBroadcasts()


def ranks(*blocked_ms: float, is_in_ddp: bool = True, role: str = "data", **call):
    """A run in whose steps each rank is held by a broadcast in forward for so long."""
    call = {"phase": "forward", "is_async": True, "nbytes": 784, **call}

    def loop(ms: float):
        return lambda number, start: [sync("broadcast", start + 1, ms, step=number, **call)]

    groups = {1: group(role=role), 2: group(1, id=2, role=role)}
    found = [zero_rank(rank, extra=loop(ms), groups=groups) for rank, ms in enumerate(blocked_ms)]
    for trace in found:
        trace.layouts = [BucketLayout(0, 1, [1 << 20])] * is_in_ddp
    return found


def test_what_ddp_sends_in_forward_is_told_with_its_saving():
    finding = said(RULE, *ranks(3, 4))
    assert finding.status is Status.FAIL
    text = "1 broadcast per step and rank in forward, 784 B together, blocked time 3.50 ms (3.5 %"
    assert finding.summary.startswith(text)
    assert "pass broadcast_buffers=False" in finding.action
    assert "ddp_broadcast_buffers=False to Hugging Face Trainer" in finding.action
    assert finding.saving_ms_per_step == pytest.approx((0.75 * 3.25, 1.25 * 3.25))


def test_what_costs_little_or_waits_for_a_late_rank_is_only_told():
    for few in (ranks(0.3, 0.4), ranks(0.1, 30)):
        finding = said(RULE, *few)
        assert (finding.status, finding.severity) == (Status.INFO, Severity.NONE)
        assert finding.saving_ms_per_step is None


@pytest.mark.parametrize(
    "other",
    [
        {"phase": "backward"},
        {"is_async": False},  # the program waits for it itself
        {"role": "tensor"},
        {"requested": "broadcast"},
        {"group": 2},  # of a single rank
    ],
)
def test_a_broadcast_that_is_not_of_ddp_is_no_buffer(other):
    assert said(RULE, *ranks(3, 4, **other)).status is Status.PASS


def test_without_ddp_it_does_not_apply():
    assert said(RULE, *ranks(3, 4, is_in_ddp=False)).status is Status.NOT_APPLICABLE


def test_threshold():
    assert_reached_at(RULE, *ranks(4, 4), saved_share=0.03)
