from __future__ import annotations

import pytest

from dsprof.findings.finding import Status
from dsprof.rules.memory.uneven_device_memory import UnevenDeviceMemory
from dsprof.trace.device_counters import PEAK_ALLOCATED
from dsprof.trace.rank_trace import RankTrace
from tests.factories.memory import GIB, on_device
from tests.factories.trace import engine, rank_trace, said, span, step

RULE = UnevenDeviceMemory()


def peaks(*gib: float, **fields):
    return [
        on_device({PEAK_ALLOCATED: int(one * GIB)}, rank=rank, world_size=len(gib), **fields)
        for rank, one in enumerate(gib)
    ]


def test_a_rank_that_needs_more_fails():
    finding = said(RULE, *peaks(10, 10, 10.2, 14))
    assert finding.status is Status.FAIL
    assert finding.ranks == (3,)
    assert "Rank 3 had 14.0 GiB" in finding.summary
    assert [row[0] for row in finding.evidence[0].rows] == [3, 2, 0, 1]
    assert finding.evidence[0].rows[0][1:] == (14 << 30, pytest.approx(14 / 10.1))
    assert "different length" in finding.cause


def test_a_rank_that_ended_early_makes_no_other_uneven():
    def ended_after(*steps: int) -> list[RankTrace]:
        traces = peaks(10, *([2] * (len(steps) - 1)))
        for trace, count in zip(traces, steps, strict=True):
            trace.steps = [step(n, n, n + 1) for n in range(count)]
        return traces

    assert said(RULE, *ended_after(30, 10)).status is Status.UNKNOWN
    assert said(RULE, *ended_after(30, 30)).ranks == (0,)
    # What it needed more is true of it, however early it ended.
    assert said(RULE, *ended_after(10, 30, 30)).ranks == (0,)


def test_rank_0_has_causes_of_its_own():
    assert "Rank 0 does more" in said(RULE, *peaks(14, 10, 10)).cause


@pytest.mark.parametrize(("stages", "status"), [(1, Status.FAIL), (2, Status.INFO)])
def test_stages_of_a_pipeline_differ_by_design(stages, status):
    config = engine(1)
    config.pipeline_stages = stages
    finding = said(RULE, *peaks(14, 10, 10, engine=config))
    assert finding.status is status
    assert ("pipeline" in finding.cause) == (stages > 1)


def test_stages_of_torch_pipelining_differ_by_design():
    ranks = peaks(14, 10, 10)
    for rank, trace in enumerate(ranks):
        trace.steps, trace.spans = [step(0, 0, 9)], [span("forward", 0, 1, stage=rank)]
    assert said(RULE, *ranks).status is Status.INFO


@pytest.mark.parametrize("gib", [(10, 10.5, 11), (0.1, 0.1, 0.9), (10, 11.9, 10)])
def test_small_differences_pass(gib):
    assert said(RULE, *peaks(*gib)).status is Status.PASS


def test_it_does_not_apply_to_cpus_and_single_ranks():
    assert said(RULE, rank_trace()).status is Status.NOT_APPLICABLE
    assert said(RULE, *peaks(10)).status is Status.NOT_APPLICABLE


def test_without_counters_it_cannot_tell():
    assert said(RULE, on_device(None)).status is Status.UNKNOWN
    assert said(RULE, on_device({PEAK_ALLOCATED: GIB})).status is Status.UNKNOWN


def test_ranks_are_listed_by_their_peak():
    (table,) = said(RULE, *peaks(10, 8, 14, 10)).evidence
    assert [row[:2] for row in table.rows] == [
        (2, 14 * GIB),
        (0, 10 * GIB),
        (3, 10 * GIB),
        (1, 8 * GIB),
    ]
    assert [row[2] for row in table.rows] == pytest.approx([1.4, 1, 1, 0.8])


def test_of_many_ranks_those_with_most_are_listed():
    rows = said(RULE, *peaks(*[10] * 39, 14)).evidence[0].rows
    assert (len(rows), rows[0][0]) == (32, 39)
