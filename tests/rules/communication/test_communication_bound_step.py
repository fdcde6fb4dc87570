from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.communication_bound_step import CommunicationBoundStep
from dsprof.rules.overlap.pipeline_bubble import PipelineBubble
from dsprof.rules.runner import judge
from tests.factories.trace import (
    assert_reached_at,
    engine,
    group,
    header,
    rank_trace,
    said,
    span,
    step,
    summary,
    sync,
    zero_rank,
)

RULE = CommunicationBoundStep()


def ranks(comm_ms=30, other_ms=None, backend="nccl", **fields):
    lengths = (comm_ms, comm_ms if other_ms is None else other_ms)
    return [
        zero_rank(rank, comm_ms=length, head=header(rank, backend=backend), **fields)
        for rank, length in enumerate(lengths)
    ]


def test_a_large_share_fails():
    finding = said(RULE, *ranks(30))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert "30.0 ms per step" in finding.summary
    assert "30 %" in finding.summary
    assert finding.config_patch is None
    shares, uses = (table.rows for table in finding.evidence)
    assert shares == ((0, 0.3), (1, 0.3))
    assert uses == (("gradients", "all_reduce", 30_000_000, 1 << 20),)


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, *ranks(30), exposed_share=0.3, severe_share=0.3)


def test_a_very_large_share_is_severe():
    assert said(RULE, *ranks(40)).severity is Severity.HIGH


def test_a_rank_that_left_no_trace_may_be_what_the_others_wait_for():
    assert "without a trace" not in said(RULE, *ranks(30)).cause
    for backend in ("nccl", "gloo"):
        assert "without a trace arrives late" in said(RULE, ranks(30, backend=backend)[0]).cause


def test_a_small_share_passes():
    finding = said(RULE, *ranks(19))
    assert finding.status is Status.PASS
    assert "(19 %). The limit is 20 %." in finding.summary


def test_the_share_to_fail_is_a_threshold():
    assert said(RULE, *ranks(19), exposed_share=0.1).status is Status.FAIL


@pytest.mark.parametrize(("nbytes", "is_small"), [(1 << 16, False), ((1 << 16) - 4, True)])
def test_of_small_collectives_latency_is_the_cause_and_not_the_links(nbytes, is_small):
    finding = said(RULE, *ranks(30, nbytes=nbytes))
    assert finding.status is Status.FAIL
    assert ("links" not in finding.cause) == is_small
    assert ("over the network" not in finding.action) == is_small
    assert finding.fix.startswith(f"Compute more per {'call' if is_small else 'byte'}")


def test_over_gloo_it_informs():
    assert said(RULE, *ranks(30, backend="gloo")).status is Status.INFO


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_accumulation_is_offered_where_a_step_reduces_once(backend):
    def action(**fields):
        return said(RULE, *ranks(30, backend=backend, **fields)).action

    assert "or more accumulation steps" in action(stage=1)
    assert "accumulation" not in action(stage=2)
    assert "reduce them only in the last micro-step (no_sync()" in action(engine=None)


def test_what_is_reduced_without_phases_may_be_no_data_of_the_batch():
    """As models that local SGD averages."""

    calls = [sync("all_reduce", 100 * n, 60, seq=n, step=n, nbytes=1 << 20) for n in range(9)]
    steps = [step(n, 100 * n, 100 * n + 100) for n in range(9)]
    spans = [span("backward", 100 * n + 70, 100 * n + 90, n) for n in range(9)]
    traces = [rank_trace(rank, 2, comm=calls, steps=steps, spans=spans) for rank in range(2)]
    finding = said(RULE, *traces)
    assert finding.action == "Send in a lower precision, over fewer ranks, or less often."


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize(
    ("fields", "grows"),
    [
        ({"op": "all_to_all_single"}, True),
        ({"op": "all_to_all_single", "nbytes": 1 << 12}, False),  # its calls become larger
        ({"op": "all_reduce", "phase": "forward"}, True),
        ({"op": "all_reduce", "phase": "backward", "flush": 1}, False),
        ({"op": "all_gather_into_tensor", "fetch": 1}, False),
    ],
)
def test_larger_batches_are_not_advised_for_what_grows_with_them(backend, fields, grows):
    """Experts and sharded embeddings exchange tokens, tensor parallelism activations."""

    def extra(number, start):
        return [sync(at=start + 1, took=30, step=number, **fields)]

    heads = [header(rank, backend=backend) for rank in range(2)]
    traces = [zero_rank(head.rank, head=head, engine=None, extra=extra) for head in heads]
    finding = said(RULE, *traces)
    assert ("lower precision" in finding.action) == grows
    assert ("data that grows with the batch" in finding.action) == grows
    assert ("Use larger micro-batches" in finding.action) != grows
    if backend == "nccl":
        assert ("larger micro-batches" in finding.fix) != grows


def test_accumulation_is_not_offered_where_no_backward_is_marked():
    """As in a server that divides its layers over ranks."""

    def server(rank):
        steps = [step(n, 100 * n, 100 * (n + 1)) for n in range(6)]
        comm = [sync("all_reduce", 100 * n, 30, step=n, seq=n) for n in range(6)]
        return rank_trace(rank, steps=steps, comm=comm)

    assert "accum" not in said(RULE, server(0), server(1)).action


def test_accumulation_with_one_reduction_is_not_advised_again():
    """Of two micro-steps the second one reduces, as with no_sync()."""
    steps = [step(n, 100 * n, 100 * (n + 1), 2) for n in range(6)]

    def action(*ops, **fields):
        return said(
            RULE,
            *(
                rank_trace(
                    rank,
                    steps=steps,
                    comm=[
                        sync(op, 100 * n + 60 - 20 * i, 20, step=n, seq=n, micro_step=1, **fields)
                        for n in range(6)
                        for i, op in enumerate(ops)
                    ],
                )
                for rank in range(2)
            ),
        ).action

    assert action("all_reduce").startswith("Use larger micro-batches or more accumulation steps:")
    gathered = action("all_gather_into_tensor", fetch=1)
    assert gathered.startswith("Use larger micro-batches: they")


def stages(*waited_ms, backend="gloo", other_ms=None, batches=1, **sent):
    """Stages that wait so long in each step, or in every third step `other_ms`."""

    def stage(number, waited):
        def extra(step, start):
            took = waited if other_ms is None or step % 3 else other_ms[number]
            return [sync("recv", start, took, step=step, **sent)]

        config, head = engine(0), header(number, backend=backend)
        config.pipeline_stages = len(waited_ms)
        given = {"comm_ms": 1, "extra": extra, "engine": config, "head": head}
        given["accumulation"] = batches
        return zero_rank(number, len(waited_ms), steps=14, **given)

    return [stage(*one) for one in enumerate(waited_ms)]


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_stages_of_a_pipeline_wait_for_each_other_and_not_for_the_network(backend):
    finding = said(RULE, *stages(30, 20, backend=backend))
    assert (finding.status, finding.ranks) == (Status.INFO, ())
    assert finding.title == "Pipeline stages wait for each other"
    assert finding.summary.endswith("between the 2 stages of the pipeline.")
    assert "micro-batches" in finding.action


@pytest.mark.parametrize("role", ["pipeline", ""])
def test_a_pipeline_is_known_by_the_role_of_its_groups(role):
    traces = stages(40, 40, 5, backend="nccl")
    for trace in traces:
        trace.engines = {}
        pipe = group(3, id=2, key="pipe", role=role)
        trace.groups = {1: group(3), 2: pipe}
    finding = said(RULE, *traces)
    assert ("between the stages of the pipeline" in finding.summary) is bool(role)


@pytest.mark.parametrize(("backend", "status"), [("gloo", Status.INFO), ("nccl", Status.FAIL)])
def test_sends_and_receives_of_a_pipeline_written_by_hand_are_not_called_transfer(backend, status):
    traces = stages(30, 20, backend=backend)
    for trace in traces:
        trace.engines = {}
    finding = said(RULE, *traces)
    assert finding.status is status
    assert finding.summary.endswith("Most of it is in sends and receives.")
    assert finding.cause.startswith("A receive waits until the other rank has computed")
    assert "larger micro-batches" not in finding.action + finding.fix


def test_stages_that_take_unequal_time_are_told_once():
    found = judge(summary(*stages(40, 40, 5)), [PipelineBubble(), RULE])
    (uneven,) = (one for one in found if one.title == "Pipeline stages take unequal time")
    assert (uneven.status, [one.rule for one in uneven.facets]) == (Status.FAIL, [RULE.meta.id])


def test_stages_that_also_reduce_gradients_wait_for_each_other_most() -> None:
    """Of 26 ms, 12 are in receives, 4 until the last rank arrives, and 10 are transfer."""
    traces = [
        zero_rank(
            number,
            steps=14,
            comm_ms=18 - 8 * number,
            extra=lambda step, start: [sync("recv", start, 12, step=step)],
            head=header(number, backend="nccl"),
        )
        for number in range(2)
    ]
    assert said(RULE, *traces).title != "Pipeline stages wait for each other"
    for trace in traces:
        trace.engines[1].pipeline_stages = 2
    finding = said(RULE, *traces)
    assert finding.title == "Pipeline stages wait for each other"
    assert "12 % of the step is in sends and receives between the 2 stages" in finding.summary


@pytest.mark.parametrize(
    ("nbytes", "cause", "action"),
    [
        (1 << 14, "The messages are small", "Use fewer and larger micro-batches"),
        (1 << 20, "A receive waits until", "If stages take unequal time, balance them"),
    ],
)
def test_waits_that_the_bubble_does_not_explain_are_not_called_one(nbytes, cause, action):
    finding = said(RULE, *stages(50, 50, batches=16, nbytes=nbytes))
    assert finding.title == "Pipeline stages wait for each other"
    bubble = "The bubble of 16 micro-batches explains only 2.7 % of the step."
    assert finding.cause.startswith(f"{bubble} {cause}")
    assert finding.action.startswith(action)


def test_a_late_rank_is_named_and_the_network_is_not_blamed():
    finding = said(RULE, *ranks(35, other_ms=10))
    assert finding.status is Status.INFO
    assert finding.ranks == (1,)
    assert finding.title == "Exposed communication is mostly waiting for later arrivals"
    assert "12 % of the step is waiting, mostly for rank 1; 10 % is transfer." in finding.summary
    assert finding.action.startswith("Look at what comes before the collectives of rank 1")


def test_waits_are_not_most_of_two_parts_that_read_alike():
    finding = said(RULE, *ranks(35.2, other_ms=11.6))
    assert "12 % of the step is waiting, mostly for rank 1; 12 % is transfer." in finding.summary
    assert "mostly" not in finding.title


def test_transfers_just_below_the_limit_are_not_blamed_on_what_ranks_do_before():
    """Ranks come last in turn, for 2 % of the step; 19 % of it is transfer."""
    traces = [
        rank_trace(
            rank,
            head=header(rank, backend="nccl"),
            steps=[step(n, 100 * n, 100 * n + 100) for n in range(12)],
            comm=[
                sync("all_reduce", 100 * n + 70 + late, 23 - late, seq=n, step=n)
                for n in range(12)
                for late in (4 * ((n + rank) % 2),)
            ],
        )
        for rank in range(2)
    ]
    finding = said(RULE, *traces)
    assert (finding.status, finding.ranks) == (Status.INFO, ())
    assert "19 % of the step is transfer, 2 % is waiting for later arrivals." in finding.summary
    assert finding.cause.startswith("Most of it is transfer")
    assert "micro-batches" in finding.action


def test_the_rank_that_waits_least_is_not_named_for_waits_that_another_causes_too():
    """Rank 1 is late in even steps, for 63 % of the waits, and rank 3 in odd ones."""
    traces = [
        rank_trace(
            rank,
            head=header(rank, 4, backend="nccl"),
            steps=[step(n, 100 * n, 100 * n + 100) for n in range(12)],
            comm=[
                sync("all_reduce", 100 * n + 50 + late, 45 - late, seq=n, step=n)
                for n in range(12)
                for late in (40 * (rank == 1 and n % 2 == 0) + 24 * (rank == 3 and n % 2),)
            ],
        )
        for rank in range(4)
    ]
    finding = said(RULE, *traces)
    assert finding.ranks == ()
    assert "is waiting, mostly for the last rank to arrive" in finding.summary
    assert finding.action.startswith("Balance what the ranks do")


def test_a_short_transfer_does_not_make_its_rank_the_late_one():
    """Rank 1 is blocked least, though rank 0 arrives last."""
    traces = [
        rank_trace(
            rank,
            steps=[step(n, 100 * n, 100 * n + 100) for n in range(12)],
            comm=[sync("all_reduce", 100 * n + arrive, took, seq=n, step=n) for n in range(12)],
        )
        for rank, (arrive, took) in enumerate(((50, 45), (35, 25)))
    ]
    finding = said(RULE, *traces)
    assert finding.summary.endswith(
        "27 % of the step is transfer, 7.5 % is waiting for later arrivals."
    )


def waiting(*shares):
    """Ranks over NCCL that wait so many milliseconds of a step of 100."""
    return [
        zero_rank(rank, len(shares), comm_ms=ms, head=header(rank, len(shares), backend="nccl"))
        for rank, ms in enumerate(shares)
    ]


def test_a_rank_that_is_early_does_not_make_the_others_late():
    finding = said(RULE, *waiting(39, 24, 24, 24))
    assert (finding.status, finding.ranks) == (Status.FAIL, ())


def test_half_of_the_ranks_can_be_late():
    finding = said(RULE, *waiting(35, 35, 10, 10))
    assert finding.ranks == (2, 3)
    assert finding.title == "Exposed communication is mostly waiting for later arrivals"


@pytest.mark.parametrize(
    ("least", "waited", "severity"), [(25, 26, Severity.MEDIUM), (41, 14, Severity.HIGH)]
)
def test_what_the_last_rank_waits_is_the_network_s(least, waited, severity):
    traces = waiting(60, 60, 60, least)
    unmatched = waiting(60, 60, 60, least)
    for trace in unmatched:
        trace.collectives.seq[:] = -1
    for finding in (said(RULE, *traces), said(RULE, *unmatched)):
        assert (finding.status, finding.severity) == (Status.FAIL, severity)
        assert finding.summary.endswith(
            f"{least} % of the step is transfer, {waited} % is waiting for later arrivals, least "
            "on rank 3."
        )


def test_exposed_time_that_was_not_measured_is_unknown():
    device = header(device="cuda", backend="nccl")
    assert said(RULE, zero_rank(comm_ms=30, head=device)).status is Status.UNKNOWN


def test_a_single_rank_has_nobody_to_wait_for():
    assert said(RULE, zero_rank(0, 1, comm_ms=30)).status is Status.NOT_APPLICABLE


def test_of_many_ranks_those_that_wait_longest_are_listed():
    waits = [zero_rank(rank, 17, comm_ms=30 + rank / 4) for rank in range(17)]
    rows = said(RULE, *waits).evidence[0].rows
    assert [row[0] for row in rows] == list(range(16, 0, -1))


def test_a_rank_that_is_hardly_late_is_not_named():
    summary = said(RULE, *ranks(60, 52)).summary
    assert summary.endswith("% is waiting for later arrivals.")


@pytest.mark.parametrize("role", ["context", "data"])
def test_the_last_parts_of_sequences_with_a_causal_mask_are_the_cause_of_the_waits(role):
    def part(number):
        arrive = (35, 45, 48, 80)[number % 4]
        members = list(range(4)) if number < 4 else list(range(4, 8))
        comm = [
            sync("all_gather", 100 * n + arrive, 90 - arrive, seq=n + 1, step=n) for n in range(12)
        ]
        steps = [step(n, 100 * n, 100 * (n + 1)) for n in range(12)]
        groups = {1: group(4, key=f"{role} {members}", role=role, ranks=members)}
        return rank_trace(number, 8, comm=comm, steps=steps, groups=groups)

    finding = said(RULE, *map(part, range(8)))
    assert (finding.status, finding.ranks) == (Status.INFO, (3, 7))
    is_known = role == "context"
    assert ("own work takes longer. They are rank 3 of each of the 2 " in finding.cause) is is_known
    assert ("parallel groups: the same part of each sequence." in finding.cause) is is_known
    assert finding.action.startswith("Divide each sequence so that all ranks") is is_known
