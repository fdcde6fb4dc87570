from __future__ import annotations

import pytest

from dsprof.findings.finding import Status
from dsprof.rules.communication.scalar_collectives import ScalarCollectives
from dsprof.trace.schema import BucketLayout, Site
from tests.factories.trace import assert_reached_at, group, header, said, sync, zero_rank

RULE = ScalarCollectives()


def ranks(*each_ms: float, calls: int = 4, head=None, groups=None, stage=2, **fields):
    """A run in whose steps each rank sends `calls` numbers, each held so long."""

    def loop(blocked_ms: float):
        def extra(number, start):
            given = {"nbytes": 8, "step": number, "phase": "", **fields}
            op = given.pop("op", "all_reduce")
            return [sync(op, start + 91 + i, blocked_ms, **given) for i in range(calls)]

        return extra

    shared = {"head": head} | ({"groups": groups} if groups else {})
    shared |= {"stage": stage, "op": {2: "all_reduce", 3: "reduce_scatter_tensor"}[stage]}
    return [zero_rank(rank, extra=loop(ms), **shared) for rank, ms in enumerate(each_ms)]


def test_numbers_in_each_step_fail_and_one_is_left():
    finding = said(RULE, *ranks(0.5, 0.6))
    assert finding.status is Status.FAIL
    assert (
        "4 collectives of at most 4 KiB per step and rank: blocked time 2.20 ms" in finding.summary
    )
    assert finding.saving_ms_per_step == pytest.approx((0.75 * 1.575, 1.25 * 1.575))
    assert finding.evidence[0].rows == (("all_reduce", "world", "", "", 4.0, 8, 2.2, 2.0),)


def test_users_of_a_trainer_are_told_its_setting():
    """Calls of transformers have the line of the program that called it, so it has no name here."""
    assert "raise logging_steps" in said(RULE, *ranks(0.5, 0.6)).action


@pytest.mark.parametrize("nbytes", [64, 2048])
def test_a_library_that_sends_most_of_them_is_named(nbytes):
    """Nobody can join what Lightning broadcasts, nor delay embeddings that the loss needs."""
    traces = ranks(0.5, 0.6, site=7, nbytes=nbytes)
    for trace in traces:
        file = "/opt/lib/python3.11/site-packages/trainer/loops/epoch.py"
        trace.sites = {7: Site(id=7, file=file, line=265)}
    finding = said(RULE, *traces)
    assert finding.status is Status.FAIL
    assert finding.cause == "trainer sends most of them, at loops/epoch.py:265."
    assert "Join" not in f"{finding.action} {finding.fix}"
    assert ("every N steps" in finding.action) == (nbytes == 64)
    assert finding.action.endswith("use fewer and larger micro-batches.")


def test_of_lines_of_a_library_that_send_equally_often_the_first_of_the_table_is_named():
    def loop(number, start):
        fields = {"nbytes": 8, "step": number, "phase": ""}
        yield sync("all_reduce", start + 91, 0.5, site=9, **fields)
        yield sync("all_gather", start + 93, 2.0, site=2, **fields)
        yield sync("all_gather", start + 96, 2.0, site=3, **fields)

    traces = [zero_rank(rank, extra=loop) for rank in (0, 1)]
    file = "/opt/lib/python3.11/site-packages/trainer/loops/epoch.py"
    for trace in traces:
        trace.sites = {line: Site(id=line, file=file, line=line) for line in (2, 3, 9)}
    finding = said(RULE, *traces)
    assert finding.cause == "trainer sends most of them, at loops/epoch.py:2 and other lines."
    assert finding.evidence[0].rows[0][3] == f"{file}:2, {file}:3"


def test_the_norm_by_which_gradients_are_clipped_is_needed_in_each_step():
    norm = "DTensor NormPartial(sum) -> Replicate on dp"
    assert said(RULE, *ranks(0.5, 0.6, nbytes=88, requested=norm)).status is Status.PASS
    partial = "DTensor Partial(sum) -> Replicate on dp"
    assert said(RULE, *ranks(0.5, 0.6, nbytes=88, requested=partial)).status is Status.FAIL


@pytest.mark.parametrize("nbytes", [64, 2048])
def test_dtensors_that_are_made_whole_cannot_be_joined(nbytes):
    whole = "DTensor Shard(0) -> Replicate on dp"
    finding = said(RULE, *ranks(0.5, 0.6, nbytes=nbytes, op="all_gather", requested=whole))
    assert finding.status is Status.FAIL
    assert "full_tensor()" in finding.cause
    assert "Join" not in f"{finding.action} {finding.fix}"
    assert "norm().full_tensor()" in finding.action  # without it, item() is of one shard


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, *ranks(0.5, 0.6), calls_per_step=4.0)


def test_tensors_are_to_be_joined_and_not_to_be_sent_less_often():
    """As gradients of biases, which a loop averages by itself between backward and step."""
    finding = said(RULE, *ranks(0.5, 0.6, nbytes=2048, dtype="float32"))
    assert finding.status is Status.FAIL
    assert finding.title == "The training loop sends several small tensors per step"
    assert "Join them" in finding.action
    assert "Leave gradients to DDP" in finding.action
    assert finding.saving_ms_per_step == pytest.approx((0.75 * 1.575, 1.25 * 1.575))


def test_a_batch_that_is_broadcast_holds_no_gradients():
    finding = said(RULE, *ranks(0.5, 0.6, op="broadcast", nbytes=2048, dtype="int64"))
    assert "Join them" in finding.action
    assert "gradients" not in finding.action


def test_parameters_of_ddp_need_no_broadcast():
    traces = ranks(0.5, 0.6, op="broadcast", nbytes=2048)
    words = "Broadcast no parameters in the loop: DDP keeps them equal."
    assert words not in said(RULE, *traces).action
    for trace in traces:
        trace.layouts = [BucketLayout(model=0, group=1, nbytes=[1 << 20])]
    assert said(RULE, *traces).action.endswith(words)


def test_the_size_of_a_tensor_is_a_threshold():
    assert "every N steps" in said(RULE, *ranks(0.5, 0.6, nbytes=256)).action
    assert "Join them" in said(RULE, *ranks(0.5, 0.6, nbytes=256), number_bytes=255).action


@pytest.mark.parametrize(("line", "words"), [(66, "Join them"), (70, "every N steps")])
def test_what_a_line_sends_that_also_sends_larger_tensors_are_tensors(line, words):
    """As a loop that reduces the gradients of weights and biases; the biases are tiny."""

    def loop(number, start):
        fields = {"step": number, "phase": ""}
        yield sync("all_reduce", start + 91, 0.5, nbytes=1 << 20, site=66, **fields)
        for i in range(4):
            yield sync("all_reduce", start + 92 + i, 0.5, nbytes=64, site=line, **fields)

    sites = {line: Site(id=line, file="/home/me/train.py", line=line) for line in (66, 70)}
    finding = said(RULE, *(zero_rank(rank, extra=loop, sites=sites) for rank in (0, 1)))
    assert finding.status is Status.FAIL
    assert words in finding.action


@pytest.mark.parametrize(("calls", "status"), [(1, Status.PASS), (2, Status.FAIL)])
def test_numbers_of_different_groups_cannot_be_joined(calls, status):
    """As the norm of gradients over all ranks and the loss over data parallel ranks."""

    def loop(number, start):
        for i in range(calls):
            for id_ in (1, 2):
                at, fields = start + 91 + 2 * i + id_, {"step": number, "phase": ""}
                yield sync("all_reduce", at, 1, nbytes=4, group=id_, **fields)

    def groups(rank):
        pair = [rank - rank % 2, rank - rank % 2 + 1]
        others = group(id=2, key=f"0/pair/{pair}", label=f"group {rank // 2}", ranks=pair)
        return {1: group(4), 2: others}

    traces = (zero_rank(rank, 4, extra=loop, groups=groups(rank)) for rank in range(4))
    finding = said(RULE, *traces)
    assert finding.status is status
    if calls == 2:
        assert "4 collectives" in finding.summary
        assert finding.saving_ms_per_step == pytest.approx((0.75 * 2, 1.25 * 2))


def test_waiting_for_ranks_that_come_late_in_turn_is_not_promised():
    """The first of the numbers waits for the late rank, and so would the one that is left."""

    def in_turn(rank):
        def loop(number, start):
            waits_ms = 8 * (number % 2 == rank)
            for i in range(4):
                at, took = (start + 90 + i, 0.5) if i else (start + 90 - waits_ms, 0.5 + waits_ms)
                fields = {"nbytes": 8, "step": number, "phase": "", "seq": 1000 + 4 * number + i}
                yield sync("all_reduce", at, took, **fields)

        return zero_rank(rank, extra=loop)

    finding = said(RULE, in_turn(0), in_turn(1))
    assert "blocked time 6.00 ms" in finding.summary
    assert finding.saving_ms_per_step == pytest.approx((0.75 * 1.5, 1.25 * 1.5))


def test_waiting_for_a_late_rank_is_not_promised():
    finding = said(RULE, *ranks(0.9, 0.01))
    assert finding.status is Status.INFO
    assert finding.saving_ms_per_step is None


def test_pickled_objects_are_named():
    finding = said(RULE, *ranks(0.5, 0.5, op="all_gather", dtype="uint8", nbytes=20_000))
    assert finding.status is Status.FAIL
    assert "4 of them for pickled objects" in finding.summary


@pytest.mark.parametrize(
    "bytes_of_tensors",
    [{"op": "broadcast", "requested": "broadcast"}, {"op": "all_reduce", "requested": ""}],
    ids=["parameters that DeepSpeed broadcasts", "a flag"],
)
def test_bytes_of_tensors_are_no_pickled_objects(bytes_of_tensors):
    finding = said(RULE, *ranks(0.5, 0.5, dtype="uint8", nbytes=20, **bytes_of_tensors))
    assert finding.status is Status.FAIL
    assert "pickled" not in finding.summary


@pytest.mark.parametrize(
    "fields",
    [
        {"calls": 1},
        {"phase": "step"},
        {"phase": "backward"},
        {"nbytes": 1 << 20},
        {"op": "barrier"},
        {"groups": {1: group(2, role="tensor")}},
    ],
)
def test_what_a_library_sends_or_is_no_scalar_passes(fields):
    assert said(RULE, *ranks(0.5, 0.5, **fields)).status is Status.PASS


@pytest.mark.parametrize(
    ("stage", "fields", "status"),
    [
        (3, {}, Status.PASS),
        (2, {}, Status.FAIL),
        (3, {"requested": ""}, Status.FAIL),  # not asked of deepspeed.comm
        (3, {"dtype": "float32"}, Status.FAIL),
    ],
)
def test_what_zero3_compares_between_ranks_is_not_the_programs(stage, fields, status):
    sent = {"op": "broadcast", "dtype": "int64", "requested": "broadcast", **fields}
    assert said(RULE, *ranks(0.5, 0.6, stage=stage, **sent)).status is status


@pytest.mark.parametrize(
    ("stage", "requested", "status"),
    [
        (3, "all_gather_into_tensor", Status.PASS),
        (2, "all_gather_into_tensor", Status.FAIL),
        (3, "", Status.FAIL),  # not asked of deepspeed.comm
        (3, "all_gather_object", Status.FAIL),
    ],
)
def test_parameters_that_gathered_parameters_gathers_are_not_the_programs(stage, requested, status):
    sent = {"op": "all_gather_into_tensor", "requested": requested}
    assert said(RULE, *ranks(0.5, 0.6, stage=stage, **sent)).status is status


def test_thresholds_move_the_verdict():
    assert said(RULE, *ranks(0.5, 0.5), saved_share=0.1).status is Status.INFO


def test_a_device_whose_waits_were_not_seen_is_told_without_figures():
    finding = said(RULE, *ranks(0.5, head=header(device="cuda", backend="nccl")))
    assert finding.status is Status.INFO
    assert "not measured" in finding.summary


def test_one_rank_alone_is_not_applicable():
    assert said(RULE, *ranks(0.5, groups={1: group(1)})).status is Status.NOT_APPLICABLE
