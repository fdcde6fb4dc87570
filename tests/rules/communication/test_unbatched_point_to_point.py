from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.unbatched_point_to_point import UnbatchedPointToPoint
from tests.factories.trace import assert_reached_at, captured, engine, group, said, sync, zero_rank

RULE = UnbatchedPointToPoint()


def rank(ops=("send", "recv") * 3, blocked_ms=1.0, backend="nccl", config=None, number=0, **fields):
    """A rank that sends and receives in each step, outside a batch if no other is said."""

    def extra(step, start):
        return [
            sync(op, start + 2 * i, blocked_ms, step=step, **fields) for i, op in enumerate(ops)
        ]

    own = group(2)
    own.backend = backend
    return zero_rank(number, 3 if number else 2, extra=extra, groups={1: own}, engine=config)


def test_single_transfers_that_cost_fail():
    finding = said(RULE, rank())
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.LOW)
    assert "6 sends and receives per step and rank are launched separately" in finding.summary
    assert "batch_isend_irecv" in finding.action
    assert finding.evidence[0].rows == (("recv", 3.0, 3 << 20, 3.0), ("send", 3.0, 3 << 20, 3.0))


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, rank(), calls_per_step=6.0, held_share=0.06)


def test_the_transfers_are_listed_under_the_names_that_were_called():
    finding = said(RULE, rank(requested="isend"))
    assert {row[0] for row in finding.evidence[0].rows} == {"isend"}
    assert {row[0] for row in said(RULE, rank()).evidence[0].rows} == {"recv", "send"}


@pytest.mark.parametrize(
    "fields", [{"coalesced": 7}, {"ops": ("send",) * 8}, {"ops": ("send", "recv")}]
)
def test_batches_one_direction_and_few_pass(fields):
    assert said(RULE, rank(**fields)).status is Status.PASS


def test_one_direction_on_each_rank_is_nothing_to_batch():
    traces = [rank(ops=(op,) * 8, number=n) for n, op in enumerate(("send", "recv"))]
    assert said(RULE, *traces).status is Status.PASS
    finding = said(RULE, *traces, rank(number=2))
    assert "6 sends and receives per step and rank" in finding.summary
    assert "blocked time 6.00 ms" in finding.summary


def test_ranks_whose_transfers_have_different_names_are_averaged():
    traces = [rank(number=n, requested=f"isend of stage {n}") for n in (0, 2)]
    finding = said(RULE, *traces)
    assert "6 sends and receives per step and rank" in finding.summary
    assert "blocked time 6.00 ms" in finding.summary


def test_those_of_deepspeeds_pipeline_are_by_design():
    config = engine(0)
    config.pipeline_stages = 2
    finding = said(RULE, rank(config=config))
    assert finding.status is Status.INFO
    assert "by design" in finding.cause
    assert finding.action.startswith("No change is needed")
    assert said(RULE, rank(config=engine(0))) == said(RULE, rank())


def test_what_stages_of_a_pipeline_wait_for_is_not_that_they_send_separately():
    traces = [rank(peer=1 - number) for number in range(2)]
    for trace in traces:
        trace.groups[1].role = "pipeline"
    finding = said(RULE, *traces)
    assert finding.status is Status.INFO
    assert finding.cause == "A stage of a pipeline waits for its neighbours, batched or not."


def test_what_costs_little_is_mentioned():
    assert said(RULE, rank(blocked_ms=0.1)).status is Status.INFO


@pytest.mark.parametrize("backend", ["gloo", "mpi", ""])
def test_backends_without_batches_are_not_applicable(backend):
    assert said(RULE, rank(backend=backend)).status is Status.NOT_APPLICABLE


def test_no_transfers_do_not_apply_and_counters_do_not_tell():
    assert said(RULE, zero_rank()).status is Status.NOT_APPLICABLE
    assert said(RULE, captured(window=range(0), steps=8)).status is Status.UNKNOWN
