from __future__ import annotations

import pytest

from dsprof.rules.rule import Status
from dsprof.rules.small_collectives import RULE
from tests.factories.trace import flush, group, rank_trace, said, step, sync, zero_rank

KIB = 1 << 10


def buckets(count: int, *, nbytes: int = 64 * KIB, cause: str = "full", engine=None):
    """A rank whose only measured step sends `count` flushes of 1 ms."""
    numbers = range(1, count + 1)
    details = {"nbytes": nbytes, "elements": nbytes // 2, "capacity": 40_000, "cause": cause}
    return rank_trace(
        steps=[step(0, 0, 1000)],
        flushes=[flush(n, n * 2, 1, step=0, **details) for n in numbers],
        comm=[sync("all_reduce", n * 2, 1, nbytes=nbytes, step=0, flush=n) for n in numbers],
    )


def gathers(count: int, nbytes: int = 4 * KIB, **fields):
    comm = [sync("all_gather", 2 * n, 1, nbytes=nbytes, step=0) for n in range(count)]
    return rank_trace(steps=[step(0, 0, 1000)], comm=comm, **fields)


def test_buckets_that_are_too_small_fail_with_a_size():
    finding = said(RULE, buckets(100))
    assert finding.status is Status.FAIL
    assert "100 bucket flushes a step carry 64 KiB each" in finding.summary
    assert finding.config_patch == {"zero_optimization": {"reduce_bucket_size": 50_000_000}}
    assert finding.saving_ms_per_step == (0.0, pytest.approx(99.0))


@pytest.mark.parametrize(
    "trace",
    [buckets(15), buckets(100, nbytes=1 << 20), buckets(12, cause="end of backward")],
    ids=["few", "large", "end of backward"],
)
def test_buckets_that_are_few_or_large_pass(trace):
    assert said(RULE, trace).status is Status.PASS


def test_a_bucket_size_that_was_never_reached_is_not_blamed():
    assert said(RULE, buckets(100, cause="end of backward")).status is Status.INFO


def test_thresholds_move_the_verdict():
    assert said(RULE, buckets(12), calls_per_step=10).status is Status.FAIL
    assert said(RULE, buckets(100), small_bytes=4 * KIB).status is Status.PASS


def test_other_small_collectives_are_mentioned():
    finding = said(RULE, gathers(40))
    assert finding.status is Status.INFO
    assert finding.title == "Many collectives are small"
    assert finding.evidence[0].rows == (("all_gather", "", 40.0, 4 * KIB, ""),)


def test_zero_3_names_its_own_settings():
    stage_3 = zero_rank(stage=3).engines[1]
    finding = said(RULE, gathers(40, engine=stage_3))
    assert "stage3_param_persistence_threshold" in finding.cause


@pytest.mark.parametrize("fields", [{"comm": ()}, {"groups": {1: group(1)}}])
def test_nothing_between_ranks_is_not_applicable(fields):
    comm = [sync("all_reduce", n, 1, step=0, nbytes=8) for n in range(50)]
    trace = rank_trace(**{"steps": [step(0, 0, 99)], "comm": comm, **fields})
    assert said(RULE, trace).status is Status.NOT_APPLICABLE


def test_a_bucket_is_not_spared_across_micro_steps():
    trace = buckets(100)
    trace.collectives.micro_step[50:] = 1
    assert said(RULE, trace).saving_ms_per_step == (0.0, pytest.approx(98.0))
