from __future__ import annotations

from dsprof.rules.host_synchronisation import RULE
from dsprof.rules.rule import Status
from tests.factories.device_run import device_rank, synchronisations
from tests.factories.trace import engine, header, said, zero_rank


def rank(count: int = 3, idle_ms: float = 1.5, **fields):
    return device_rank(stalls=synchronisations(count, idle_ms), **fields)


def test_stops_in_each_step_fail():
    finding = said(RULE, rank())
    assert finding.status is Status.FAIL
    assert "stops 3 times a step for the device" in finding.summary
    assert "4.50 ms meanwhile (4.5%)" in finding.summary
    assert finding.config_patch is None


def test_timers_of_deepspeed_are_named_with_a_patch():
    config = engine()
    config.effective["wall_clock_breakdown"] = True
    assert said(RULE, rank(engine=config)).config_patch == {"wall_clock_breakdown": False}


def test_few_or_cheap_stops_pass():
    assert said(RULE, rank(count=1, idle_ms=9)).status is Status.PASS
    assert said(RULE, rank(idle_ms=0.1)).status is Status.PASS
    assert said(RULE, rank(count=0)).status is Status.PASS


def test_without_times_of_a_device_it_does_not_apply():
    assert said(RULE, zero_rank()).status is Status.NOT_APPLICABLE
    untimed = zero_rank(head=header(device="cuda", backend="nccl"))
    assert said(RULE, untimed).status is Status.NOT_APPLICABLE


def test_thresholds_move_the_verdict():
    assert said(RULE, rank(), calls_per_step=4).status is Status.PASS
    assert said(RULE, rank(), idle_share=0.1).status is Status.PASS
