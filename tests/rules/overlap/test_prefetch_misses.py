from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.overlap.prefetch_misses import PrefetchMisses
from tests.factories.trace import (
    assert_reached_at,
    captured,
    engine,
    fetch,
    header,
    issued,
    said,
    zero_rank,
)

RULE = PrefetchMisses()

PREFETCH = "stage3_prefetch_bucket_size"


def rank(missed_mib: float = 4, ahead_mib: float = 1, wait_ms: float = 9, **fields):
    """A rank that gathers so much when needed and so much ahead, and waits for the former."""
    zero = fields.pop("zero", {})
    comm, fetches = [], []
    for number in range(6):
        start = 100 * number
        for place, (kind, mib) in enumerate((("fetch", missed_mib), ("prefetch", ahead_mib))):
            key, at = 1000 + 2 * number + place, start + 12 * place
            told = {"phase": "forward", "step": number}
            if mib:
                fetches.append(fetch(key, at, 1, kind=kind, **told))
                waited = at + (wait_ms if kind == "fetch" else 0.01)
                times = {"wait": at, "waited": waited, "nbytes": int(mib * (1 << 20))}
                comm.append(issued("all_gather", at, waited, fetch=key, **told, **times))

    def extra(number, start):
        return [one for one in comm if one.args.step == number]

    config = engine(3, **zero)
    return zero_rank(stage=3, extra=extra, fetches=fetches, engine=config, **fields)


def test_a_small_prefetch_bucket_fails():
    finding = said(RULE, rank(zero={PREFETCH: 1000}))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert "80 % of the bytes" in finding.summary
    assert "9.00 ms per step (9 %)" in finding.summary
    assert finding.config_patch == {"zero_optimization": {PREFETCH: 50_000_000}}
    assert {row[0] for row in finding.evidence[0].rows} == {
        "parameters gathered on demand, all_gather in forward",
        "parameters prefetched, all_gather in forward",
    }
    assert finding.evidence[0].rows[0][1:] == (1.0, 4 << 20, 9.0, 0.0, 9.0), "longest first"


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, rank(zero={PREFETCH: 1000}), missed_share=0.8, held_share=0.09)


def test_no_room_to_gather_ahead_is_told_before_a_small_bucket():
    zero = {PREFETCH: 1000, "stage3_max_live_parameters": 0}
    finding = said(RULE, rank(zero=zero))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert "stage3_max_live_parameters limits gathered parameters to 0 elements" in finding.cause
    assert finding.config_patch == {
        "zero_optimization": {"stage3_max_live_parameters": 1_000_000_000}
    }


def test_room_to_gather_ahead_is_no_fault():
    finding = said(RULE, rank(zero={"stage3_max_live_parameters": 10**9}))
    assert finding.status is Status.INFO


def test_misses_at_the_default_are_information():
    finding = said(RULE, rank())
    assert finding.status is Status.INFO
    assert finding.config_patch is None


@pytest.mark.parametrize("fields", [{"ahead_mib": 16}, {"wait_ms": 1}])
def test_what_is_gathered_ahead_or_waited_for_shortly_passes(fields):
    assert said(RULE, rank(zero={PREFETCH: 1000}, **fields)).status is Status.PASS


def test_prefetching_that_is_off_is_told_elsewhere():
    finding = said(RULE, rank(zero={PREFETCH: 0}))
    assert finding.status is Status.NOT_APPLICABLE
    assert "low-comm-overlap" in finding.summary


def test_without_gathers_or_stage_3_it_does_not_apply():
    assert said(RULE, rank(missed_mib=0, ahead_mib=0)).status is Status.NOT_APPLICABLE
    assert said(RULE, zero_rank(stage=2)).status is Status.NOT_APPLICABLE


def test_waits_that_were_not_measured_and_counters_do_not_tell():
    head = header(device="cuda", backend="nccl")
    assert said(RULE, rank(head=head)).status is Status.UNKNOWN
    assert said(RULE, captured(window=range(0), steps=8, stage=3)).status is Status.UNKNOWN
