from __future__ import annotations

from typing import Any

import pytest

from dsprof.findings.finding import Finding, Severity, Status
from dsprof.rules.communication.repeated_parameter_gathers import RepeatedParameterGathers
from dsprof.trace.device_counters import RETRIES
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import MemorySample, ParameterLayout
from tests.factories.trace import (
    assert_reached_at,
    captured,
    engine,
    fetch,
    header,
    judged,
    said,
    span,
    sync,
    zero_rank,
)

RULE = RepeatedParameterGathers()

MIB = 1 << 20
REUSE = "stage3_max_reuse_distance"
LOW = {REUSE: 0}


def rank(blocked_ms: float = 6, again: float = 1.0, library: str = "", config=None, **fields):
    """A rank that gathers a million elements in forward, and `again` times as many in backward."""
    flights, fetches = [], []
    for number in range(6):
        start = 100 * number
        for place, (phase, times) in enumerate((("forward", 1.0), ("backward", again))):
            key = 1000 + 10 * number + place
            told = {"phase": phase, "step": number}
            if times:
                at = start + 5 + 40 * place
                unit = {"library": library, "module": "layer" if library else ""}
                fetches.append(fetch(key, at, 1, elements=int(1e6 * times), **unit, **told))
                flights.append(
                    sync("all_gather", at, blocked_ms, fetch=key, nbytes=4 * MIB, **told)
                )

    def extra(number, start):
        return [one for one in flights if one.args.step == number]

    return zero_rank(stage=3, extra=extra, fetches=fetches, engine=config, **fields)


def test_a_limit_below_the_default_fails_with_a_patch():
    finding = said(RULE, rank(config=engine(3, **LOW)))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert finding.config_patch == {"zero_optimization": {REUSE: 1_000_000_000}}
    assert finding.cause.startswith(f"{REUSE} is 0 elements:")
    assert "50 % of the parameters that a step all-gathers (4.00 MiB)" in finding.summary
    assert finding.saving_bytes_per_step == 4 * MIB
    low, high = finding.saving_ms_per_step
    assert low < 6 < high <= 2 * low
    assert finding.evidence[0].rows == (("forward", 1_000_000), ("backward", 1_000_000))


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, rank(config=engine(3, **LOW)), repeated_share=0.5, held_share=0.06)


def test_the_limit_of_gathering_ahead_lets_nothing_go():
    finding = said(RULE, rank(config=engine(3, stage3_max_live_parameters=0)))
    assert (finding.status, finding.config_patch) == (Status.INFO, None)
    assert "elements in the configuration" not in finding.cause


@pytest.mark.parametrize(
    ("recomputes", "written", "is_low"),
    [
        (False, 1_999_999, True),
        (False, 2_000_000, False),
        (True, 2_999_999, True),
        (True, 3_000_000, False),
    ],
)
def test_a_module_is_used_again_after_two_passes_of_the_model_or_three(recomputes, written, is_low):
    config = engine(3, **{REUSE: written})
    config.parameters = 1_000_000
    trace = rank(config=config)
    if recomputes:
        told = {"phase": "recomputation", "step": 3}
        trace.fetches.append(fetch(5000, 350, 1, elements=10, **told))
    assert (said(RULE, trace).status is Status.FAIL) == is_low


def test_frozen_parameters_are_gathered_too():
    config = engine(3, **LOW)
    config.parameters = 1_000_000
    config.layout = ParameterLayout(gathered=6_900_000_000, persistent=100_000_000)
    assert said(RULE, rank(config=config)).status is Status.INFO


def test_where_memory_is_short_the_limit_is_meant():
    memory = [MemorySample("step", n, step=n, device={RETRIES: 2 * n}) for n in range(2)]
    finding = said(RULE, rank(config=engine(3, **LOW), memory=memory))
    assert (finding.status, finding.config_patch) == (Status.INFO, None)
    assert finding.saving_ms_per_step is None


def test_what_backward_hardly_waits_for_promises_no_time():
    finding = said(RULE, rank(blocked_ms=0.2, config=engine(3, **LOW)))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.LOW)
    assert finding.saving_ms_per_step is None


def test_the_limit_of_a_model_that_exceeds_the_default_is_meant():
    config = engine(3, **LOW)
    config.parameters = 7_000_000_000
    assert said(RULE, rank(config=config)).status is Status.INFO


@pytest.mark.parametrize("library", ["FSDP1", "FSDP2"])
def test_fsdp_does_so_by_design(library):
    finding = said(RULE, rank(library=library))
    assert finding.status is Status.INFO
    assert "reshard_after_forward" in finding.action
    assert finding.saving_ms_per_step is None


@pytest.mark.parametrize(
    ("library", "free", "blocked_ms", "status"),
    [
        ("FSDP2", 16 * MIB, 6, Status.FAIL),
        ("FSDP2", 16 * MIB - 1, 6, Status.INFO),
        ("FSDP2", 16 * MIB, 0.3, Status.INFO),
        ("FSDP1", 16 * MIB, 6, Status.INFO),
    ],
)
def test_fsdp2_fails_over_micro_steps_if_memory_has_room(library, free, blocked_ms, status):
    traces = [rank(blocked_ms, library=library, accumulation=2, rank=n) for n in range(2)]
    for trace in traces:
        trace.memory = [MemorySample("step", 0, step=4, host_available_bytes=free)]
    finding = said(RULE, *traces)
    assert finding.status is status
    if status is Status.FAIL:
        assert finding.severity is Severity.MEDIUM
        assert "set_reshard_after_backward(False)" in finding.action
        assert finding.saving_bytes_per_step == 4 * MIB
        assert finding.saving_ms_per_step == pytest.approx((4.5, 7.5))


def test_parameters_that_stay_over_micro_steps_are_gathered_once():
    trace = rank(again=0.0, library="FSDP2", accumulation=2)
    trace.memory = [MemorySample("step", 0, step=4, host_available_bytes=99 * MIB)]
    assert said(RULE, trace).status is Status.PASS


def generating(times: int, library: str = "FSDP2", blocked_ms: float = 2, **fields: Any):
    """A rank whose forward gathers the one unit of a model so often in each step."""
    module = "layer" if library else ""
    flights, fetches = [], []
    for number in range(6):
        told = {"phase": "forward", "step": number}
        for turn in range(times):
            key, at = 1000 + 100 * number + turn, 100 * number + 1 + 3 * turn
            fetches.append(
                fetch(key, at, 1, elements=10**6, library=library, module=module, **told)
            )
            flights.append(sync("all_gather", at, blocked_ms, fetch=key, nbytes=4 * MIB, **told))
    return zero_rank(
        stage=3,
        extra=lambda number, start: [one for one in flights if one.args.step == number],
        fetches=fetches,
        **fields,
    )


def test_fsdp2_that_reshards_only_after_backward_is_not_told_to_keep_after_forward():
    traces = [generating(2, blocked_ms=6, accumulation=2, rank=number) for number in range(2)]
    for trace in traces:
        trace.memory = [MemorySample("step", 0, step=4, host_available_bytes=99 * MIB)]
    finding = said(RULE, *traces)
    assert finding.status is Status.FAIL
    assert "all-gathered in forward of 2 micro-steps" in finding.summary
    assert finding.cause.startswith("FSDP2 reshards after backward,")
    assert "set_reshard_after_forward" not in finding.action


def of_forwards(trace: RankTrace, **thresholds: float) -> Finding | None:
    found = judged(RULE, trace, **thresholds)
    return next((one for one in found if "many forwards" in one.title), None)


def test_forwards_of_generation_that_gather_each_fail():
    finding = of_forwards(generating(10))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert finding.summary == (
        "Forward all-gathers the parameters 10 times per micro-step, as in generation or "
        "evaluation: blocked time 20.0 ms per step."
    )
    assert "set_reshard_after_forward(False)" in finding.action
    low, high = finding.saving_ms_per_step
    assert low < 18 < high <= 2 * low


def test_parameters_that_stay_for_all_forwards_are_gathered_once():
    trace = generating(1)
    trace.spans += [
        span("forward", 100 * n + t, 100 * n + t + 1, n) for n in range(6) for t in range(9)
    ]
    assert of_forwards(trace) is None


def test_thresholds_of_forwards_are_reached_at_their_value():
    trace = generating(10)
    assert of_forwards(trace, times=10, times_share=0.18) is not None
    assert of_forwards(trace, times=10.1) is None
    assert of_forwards(trace, times_share=0.181) is None


def test_where_no_call_keeps_parameters_forwards_are_a_remark():
    assert of_forwards(generating(10, "FSDP1")).status is Status.INFO
    config = engine(3)
    config.parameters = 1_000_000
    finding = of_forwards(generating(10, "", engine=config))
    assert (finding.status, finding.saving_ms_per_step) == (Status.INFO, None)
    assert "GatheredParameters" in finding.action


def test_where_memory_is_short_units_are_meant_to_reshard():
    memory = [MemorySample("step", n, step=n, device={RETRIES: 2 * n}) for n in range(2)]
    assert of_forwards(generating(10, memory=memory)).status is Status.INFO


def test_defaults_of_zero_3_are_by_design():
    assert said(RULE, rank(config=engine(3))).status is Status.INFO


def test_parameters_that_stay_pass():
    assert said(RULE, rank(again=0, config=engine(3, **LOW))).status is Status.PASS
    assert said(RULE, rank(again=0.05, config=engine(3, **LOW))).status is Status.PASS


def test_a_prefetch_is_not_counted_beside_its_fetch():
    trace = rank(again=0, config=engine(3, **LOW))
    trace.fetches += [
        fetch(n, 1, 1, kind="prefetch", phase="backward", step=n, elements=10**6) for n in range(6)
    ]
    assert said(RULE, trace).status is Status.PASS
    trace = rank(again=1, library="FSDP1")
    for one in trace.fetches:
        one.kind = "prefetch" if one.phase == "backward" else one.kind
    assert said(RULE, trace).status is not Status.PASS


def test_what_forward_prefetched_for_backward_is_not_gathered_again():
    """Backward waits for a fetch, and the wire shows no gather in it: nothing to save."""
    trace = rank(again=0, config=engine(3, **LOW))
    trace.fetches += [fetch(n, 1, 1, phase="backward", step=n, elements=10**6) for n in range(6)]
    finding = said(RULE, trace)
    assert finding.status is Status.PASS
    assert "0 B" not in finding.summary


def test_a_device_without_times_promises_bytes_alone():
    head = header(device="cuda", backend="nccl")
    finding = said(RULE, rank(config=engine(3, **LOW), head=head))
    assert finding.status is Status.FAIL
    assert finding.saving_ms_per_step is None


def test_without_gathers_it_does_not_apply_and_counters_do_not_tell():
    assert said(RULE, zero_rank()).status is Status.NOT_APPLICABLE
    assert said(RULE, captured(window=range(0), steps=8)).status is Status.UNKNOWN


def test_gathers_that_lost_their_sizes_do_not_break_the_rule():
    trace = rank(config=engine(3, **LOW))
    for one in trace.fetches:
        one.elements = 0
    assert said(RULE, trace).status is Status.NOT_APPLICABLE


def test_the_share_is_a_threshold():
    assert said(RULE, rank(config=engine(3, **LOW)), repeated_share=0.6).status is Status.PASS
    finding = said(RULE, rank(config=engine(3, **LOW)), held_share=0.5)
    assert finding.severity is Severity.LOW


def test_the_memory_that_whole_parameters_take_is_known():
    config = engine(3, **LOW)
    config.parameters = 429_496_730  # 0.4 x 2^30
    assert "up to 819 MiB more on each rank, in 16 bits" in said(RULE, rank(config=config)).action
