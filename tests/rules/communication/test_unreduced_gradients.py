from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.unreduced_gradients import UnreducedGradients
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import BucketLayout, HookStatus
from tests.factories.trace import (
    assert_reached_at,
    counters,
    fetch,
    group,
    header,
    rank_trace,
    said,
    span,
    step,
    sync,
    zero_rank,
)

RULE = UnreducedGradients()

DDP = BucketLayout(model=0, group=1, nbytes=[1 << 20])


def rank(*ops: tuple[str, int], steps: int = 12, fetched: int = 0, **fields) -> RankTrace:
    """A rank that trains without an engine, and calls each of `ops` with its bytes in a step."""
    comm, made = [], {"steps": [], "spans": []}
    for number in range(steps):
        start = 100.0 * number
        made["steps"].append(step(number, start, start + 100))
        for i, name in enumerate(("forward", "backward", "step")):
            made["spans"].append(span(name, start + 30 * i, start + 30 * i + 20, number))
        for i, (op, nbytes) in enumerate(ops):
            at = {"step": number, "fetch": fetched, "phase": "backward"}
            comm.append(sync(op, start + 30 + 3 * i, 1, nbytes=nbytes, **at))
    return rank_trace(comm=comm, **{**made, **fields})


@pytest.mark.parametrize(
    "ops",
    [
        (),
        (("all_reduce", 16),),
        (("all_gather", 300), ("broadcast", 64), ("barrier", 0)),
    ],
)
def test_training_without_any_exchange_fails(ops):
    finding = said(RULE, rank(*ops))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert finding.summary.startswith("In 10 measured steps")
    assert "ddp.module(x)" in finding.cause
    assert finding.fix == "Wrap the model in DDP, and call the wrapper"
    # Since an optimizer step starts a recording, too, it may be of such a run.
    assert finding.action.endswith("travel outside torch.distributed, as by RPC or MPI.")


def test_ddp_that_never_reduces_has_no_sync_as_its_cause():
    finding = said(RULE, rank(("all_reduce", 400), layouts=[DDP]))
    assert finding.status is Status.FAIL
    assert finding.cause.startswith("no_sync()")


def test_fsdp_that_only_gathers_is_named():
    trace = rank(("all_gather", 1 << 20), fetched=1, fetches=[fetch(1, 0, 1)])
    finding = said(RULE, trace)
    assert finding.status is Status.FAIL
    assert finding.cause.startswith("FSDP all-gathers")


@pytest.mark.parametrize(
    "op",
    [
        *(("all_reduce", 40), ("all_reduce", 1 << 20), ("all_gather", 1 << 20)),
        *(("send", 256), ("all_to_all_single", 256), ("gather", 256)),
    ],
)
def test_what_could_be_gradients_passes(op):
    assert said(RULE, rank(op)).status is Status.PASS


@pytest.mark.parametrize("role", ["pipeline", "tensor"])
def test_parts_of_one_model_need_no_sum_of_gradients(role):
    trace = rank(("send", 1 << 20), ("recv", 256), groups={1: group(role=role)})
    assert said(RULE, trace).status is Status.NOT_APPLICABLE


def test_gradients_that_a_communication_hook_sends_otherwise_are_not_called_missing():
    """PowerSGD sends factors, of a small model less than 4 KiB of them."""
    layout = BucketLayout(model=0, group=1, nbytes=[1 << 20], comm_hook="powerSGD_hook")
    finding = said(RULE, rank(("all_reduce", 2048), layouts=[layout]))
    assert finding.status is Status.UNKNOWN
    assert "powerSGD_hook of DDP" in finding.summary


def test_a_communication_hook_that_sends_nothing_is_named():
    """DDP counts the buckets that it gives to noop_hook as reduced."""
    layout = BucketLayout(
        model=0, group=1, nbytes=[1 << 20], buckets_reduced=12, comm_hook="noop_hook"
    )
    finding = said(RULE, rank(layouts=[layout]))
    assert finding.status is Status.FAIL
    assert finding.cause.startswith("noop_hook is registered")


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, rank(), steps=10)
    assert said(RULE, rank(("all_reduce", 40)), scalar_bytes=40).status is Status.FAIL


def test_few_steps_are_no_verdict():
    finding = said(RULE, rank(steps=8))
    assert finding.status is Status.UNKNOWN
    assert "10 are needed" in finding.summary


def test_only_steps_in_full_detail_are_evidence():
    trace = rank(steps=40)
    trace.spans = [one for one in trace.spans if one.step >= 35]
    trace.counters = [counters(n) for n in range(35)]
    finding = said(RULE, trace)
    assert finding.status is Status.UNKNOWN
    assert "Only 5 steps" in finding.summary


def test_reductions_that_ddp_counted_and_nothing_saw_are_no_verdict():
    counted = BucketLayout(model=0, group=1, nbytes=[1 << 20], buckets_reduced=1)
    assert said(RULE, rank(layouts=[counted])).status is Status.UNKNOWN


def test_a_hook_that_failed_is_no_verdict():
    hooks = [HookStatus("c10d", "torch.distributed", why="AttributeError")]
    assert said(RULE, rank(hooks=hooks)).status is Status.UNKNOWN


def test_a_rank_that_trains_alone_beside_others_reduces_nothing():
    """As the learner of reinforcement learning, beside ranks that act."""
    actor = rank()
    actor.header, actor.spans = header(1, 2), []
    assert said(RULE, rank(), actor).status is Status.NOT_APPLICABLE
    actor.header = header(1, 3)
    learner = rank()
    learner.header = header(2, 3)
    finding = said(RULE, rank(), actor, learner)
    assert finding.status is Status.FAIL
    assert finding.summary.startswith("In 10 measured steps")


def test_others_are_not_applicable():
    alone, untrained, foreign = rank(), rank(), rank()
    alone.header = header(0, 1)
    untrained.spans = [span for span in untrained.spans if span.name == "forward"]
    foreign.is_foreign = True
    for trace in (alone, untrained, foreign, zero_rank()):
        assert said(RULE, trace).status is Status.NOT_APPLICABLE
