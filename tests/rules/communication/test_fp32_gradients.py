from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.fp32_gradients import FP32Gradients
from tests.factories.trace import (
    assert_reached_at,
    captured,
    engine,
    group,
    header,
    said,
    sync,
    zero_rank,
)

RULE = FP32Gradients()

MIB = 1 << 20


def asked(precision: str = "bfloat16"):
    config = engine()
    config.effective["communication_data_type"] = "fp32"
    config.parameter_dtype = precision
    return config


def ranks(*comm_ms: float, dtype: str = "float32", **fields):
    given = {"engine": asked(), **fields}
    traces = [zero_rank(rank, comm_ms=ms, **given) for rank, ms in enumerate(comm_ms)]
    for trace in traces:
        trace.collectives.words = [
            dtype if word == "float32" else word for word in trace.collectives.words
        ]
    return traces


def test_a_key_that_asks_for_fp32_fails_with_a_patch():
    finding = said(RULE, *ranks(10, 12))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert finding.config_patch == {"communication_data_type": "bf16"}
    assert finding.saving_bytes_per_step == MIB // 2
    assert finding.saving_ms_per_step == pytest.approx((0.75 * 5.25, 1.25 * 5.25))
    assert finding.evidence[0].rows == (
        ("fp32, as recorded", 1.0, MIB, 11.0),
        ("bf16", None, MIB // 2, None),
    )


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, *ranks(10, 12), wide_share=1.0, saved_share=0.065625)


def test_what_the_others_wait_for_a_late_rank_is_not_promised():
    assert said(RULE, *ranks(20, 4)).saving_ms_per_step == pytest.approx((1.5, 2.5))


def test_latency_of_small_reductions_is_not_promised():
    """Half of 512 KiB does not arrive in half of the time."""
    finding = said(RULE, *ranks(10, 12, nbytes=MIB // 2))
    assert (finding.severity, finding.saving_ms_per_step) == (Severity.LOW, None)
    assert finding.saving_bytes_per_step == MIB // 4


def test_little_to_save_is_of_low_severity():
    assert said(RULE, *ranks(1, 1)).severity is Severity.LOW


def test_gradients_in_the_model_s_format_pass():
    assert said(RULE, *ranks(10, 10, dtype="bfloat16")).status is Status.PASS


def test_without_the_key_it_is_information():
    finding = said(RULE, *ranks(10, 10, engine=engine()))
    assert finding.status is Status.INFO
    assert finding.config_patch is None


def test_a_model_in_fp32_is_not_applicable():
    finding = said(RULE, *ranks(10, 10, engine=asked("float32")))
    assert finding.status is Status.NOT_APPLICABLE


def fsdp(gathered: str):
    def gathers(number, start):
        return [sync("all_gather", start, 1, fetch=3, step=number, dtype=gathered)]

    return zero_rank(engine=None, op="reduce_scatter", extra=gathers)


def test_fsdp_that_gathers_in_16_bits_is_told():
    assert said(RULE, fsdp("bfloat16")).status is Status.INFO
    assert said(RULE, fsdp("float32")).status is Status.NOT_APPLICABLE


def test_ddp_does_not_say_what_it_computes_in():
    assert said(RULE, zero_rank(engine=None)).status is Status.NOT_APPLICABLE


def test_a_device_without_times_promises_bytes_alone():
    head = header(device="cuda", backend="nccl")
    finding = said(RULE, *ranks(10, head=head))
    assert finding.status is Status.FAIL
    assert finding.saving_ms_per_step is None
    assert finding.saving_bytes_per_step == MIB // 2


def test_nothing_between_ranks_is_not_applicable_and_counters_do_not_tell():
    assert said(RULE, zero_rank(groups={1: group(1)})).status is Status.NOT_APPLICABLE
    assert said(RULE, captured(window=range(0), steps=8)).status is Status.UNKNOWN
