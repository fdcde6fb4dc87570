from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dsprof.findings.finding import Finding, Status
from dsprof.rules.communication.unexplained_traffic import UnexplainedTraffic
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import BucketLayout, EngineConfig, ParameterLayout, Site
from tests.factories.engines import (
    ELEMENTS,
    LAYOUT,
    LAYOUT_3,
    WHOLE,
    as_bfloat16,
    interleaved,
)
from tests.factories.trace import (
    captured,
    engine,
    fetch,
    group,
    judged,
    said,
    span,
    sync,
    zero_rank,
)

RULE = UnexplainedTraffic()


def rank(stage: int = 2, *, nbytes: int = WHOLE, extra: Any = None, **fields: Any) -> RankTrace:
    """A rank that sends what its configuration asks for, and `extra(step, start_ms)`."""
    accumulation, in_group = fields.pop("accumulation", 1), fields.pop("in_group", 0)
    zero = fields.pop("zero", {})
    built = engine(stage, accumulation, **zero)
    built.layout = {0: ParameterLayout(), 3: LAYOUT_3}.get(stage, LAYOUT)
    given = {"op": "reduce_scatter_tensor" if stage == 3 else "all_reduce", "engine": built}

    def further(step: int, start: float):
        yield from update(step, start) if stage in (1, 2) else ()
        yield from fetched(step, start, accumulation) if stage == 3 else ()
        yield from extra(step, start) if extra is not None else ()

    trace = zero_rank(
        stage=stage,
        nbytes=nbytes,
        accumulation=accumulation,
        extra=further,
        zero=zero,
        **(given | fields),
    )
    as_bfloat16(trace)
    if in_group:
        trace.collectives.group[:] = in_group
    return trace


def update(step: int, start: float):
    asked = {"requested": "all_gather_into_tensor", "phase": "step"}
    yield sync("all_gather_into_tensor", start + 80, 1, nbytes=WHOLE, step=step, **asked)


def fetched(step: int, start: float, times: int):
    asked = {"requested": "all_gather_into_tensor", "phase": "forward", "fetch": 99}
    for n in range(times):
        yield sync("all_gather_into_tensor", start + n, 1, nbytes=WHOLE, step=step, **asked)


def rows(finding: Finding) -> dict[str, dict[str, Any]]:
    (table,) = finding.evidence
    labels = [column.label for column in table.columns]
    return {str(row[0]): dict(zip(labels, row, strict=True)) for row in table.rows}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_what_a_stage_asks_for_passes_with_both_sides_in_a_table(stage, accumulation):
    trace = rank(stage, accumulation=accumulation)
    if stage < 2 and accumulation > 1:  # those accumulate before they reduce
        first = (trace.collectives.flush > 0) & (trace.collectives.micro_step == 0)
        trace.collectives.step[first] = -1
        trace.flushes = trace.flushes[1::2]
    finding = said(RULE, trace)
    assert finding.status is Status.PASS, finding.summary
    found = rows(finding)["gradients"]
    assert found["bytes asked for, at least"] == found["bytes sent"]
    assert found["bytes sent"] == WHOLE * (accumulation if stage > 1 else 1)
    assert found["calls asked for"] == f"{found['calls']:g}"


def test_another_number_format_is_named():
    trace = rank(nbytes=2 * WHOLE)
    trace.collectives.elements //= 2
    for one in trace.flushes:
        one.elements = ELEMENTS
    finding = said(RULE, trace)
    assert finding.status is Status.INFO
    assert rows(finding)["gradients"]["cause"] == "not sent as bfloat16"


def test_parameters_without_a_gradient_are_named():
    finding = said(RULE, rank(nbytes=WHOLE * 3 // 4))
    assert finding.status is Status.INFO
    assert rows(finding)["gradients"]["cause"] == "25 % of the parameters had no gradient"
    assert "non-reentrant" in finding.action


def test_sparse_gradients_are_all_gathered_without_zero():
    def gathered(step: int, start: float):
        asked = {"requested": "all_gather", "phase": "backward"}
        yield sync("all_gather", start + 70, 1, nbytes=WHOLE // 8, step=step, **asked)
        yield sync("send", start + 72, 1, nbytes=WHOLE // 16, step=step, **asked)

    trace = rank(0, nbytes=WHOLE * 3 // 4, extra=gathered)
    finding = said(RULE, trace)
    assert (finding.status, finding.action) == (Status.INFO, "")
    assert rows(finding)["gradients"]["cause"].endswith("with sparse=True are all-gathered")
    *_, sparse, others = (row[-1] for row in finding.evidence[0].rows)
    assert sparse.startswith("sparse gradients")
    assert others == "a pipeline"

    trace.groups[2] = group(id=2, role="tensor")
    trace.collectives.group[trace.collectives.of_families({"all_gather"})] = 2
    gradients, *others = (row[-1] for row in said(RULE, trace).evidence[0].rows)
    assert gradients == "25 % of the parameters had no gradient"
    assert others == ["tensor parallel", "a pipeline"]
    assert said(RULE, rank(1, extra=gathered)).status is Status.FAIL


@pytest.mark.parametrize(
    "other",
    [{"op": "broadcast"}, {"phase": "forward"}, {"requested": ""}, {"nbytes": 8}],
    ids=["another operation", "in forward", "by the program", "small"],
)
def test_what_is_not_all_gathered_as_sparse_gradients_are_explains_none(other):
    def sent(step: int, start: float):
        made = {"op": "all_gather", "requested": "all_gather", "phase": "backward", **other}
        yield sync(at=start + 70, took=1, step=step, **{"nbytes": WHOLE // 8, **made})

    found = rows(said(RULE, rank(0, nbytes=WHOLE * 3 // 4, extra=sent)))
    assert found["gradients"]["cause"] == "25 % of the parameters had no gradient"


def test_fewer_bytes_than_were_flushed_are_unexplained():
    trace = rank(nbytes=WHOLE * 3 // 4)
    for one in trace.flushes:
        one.elements = ELEMENTS
    finding = said(RULE, trace)
    assert finding.status is Status.FAIL
    sent, asked = WHOLE * 3 // 4, WHOLE
    gradients, update = (row[3:9] for row in finding.evidence[0].rows)
    assert gradients == ("1", 1.0, asked, asked, sent, "unexplained")
    assert update == ("1", 1.0, asked, asked, asked, "as asked")


def test_other_micro_steps_than_configured_are_named():
    trace = rank(2, accumulation=4)
    trace.engines[1].effective["gradient_accumulation_steps"] = 2
    finding = said(RULE, trace)
    assert finding.status is Status.INFO
    cause = rows(finding)["gradients"]["cause"]
    assert cause == "4 micro-steps per step, where 2 are configured"


def test_a_stage_that_need_not_reduces_each_micro_step():
    finding = said(RULE, rank(1, accumulation=2))
    assert finding.status is Status.INFO
    assert rows(finding)["gradients"]["cause"] == "reduced in 2 of 2 micro-steps"


def test_an_op_that_no_setting_asks_for_is_unexplained():
    finding = said(RULE, rank(3, op="all_reduce"))
    assert finding.status is Status.FAIL
    assert finding.cause == "all_reduce: gradients need none."


@pytest.mark.parametrize(("times", "status"), [(2, "info"), (3, "fail"), (4, "fail")])
def test_parameters_gathered_again(times, status):
    trace = rank(3, extra=lambda step, start: fetched(step, start + 10, times - 1))
    finding = said(RULE, trace)
    assert finding.status.value == status
    assert rows(finding)["parameters for use"]["bytes sent"] == times * WHOLE


@pytest.mark.parametrize(
    ("zero", "verdict"),
    [
        ({"stage3_max_live_parameters": 0}, "explained"),
        ({"stage3_max_reuse_distance": 3 * ELEMENTS}, "explained"),
        ({"stage3_max_reuse_distance": 3 * ELEMENTS - 1}, "as asked"),
    ],
)
def test_the_reuse_distance_alone_asks_for_a_second_gather(zero, verdict):
    trace = rank(3, zero=zero, extra=lambda step, start: fetched(step, start + 10, 1))
    assert rows(said(RULE, trace))["parameters for use"]["verdict"] == verdict


def test_evaluation_within_a_step_explains_gathers():
    trace = rank(3, extra=lambda step, start: fetched(step, start + 10, 3))
    spans = [span("forward", 100 * n + k, 100 * n + k + 1, n) for n in range(6) for k in range(3)]
    trace.spans += spans
    finding = said(RULE, trace)
    assert finding.status is Status.INFO
    assert "4 forwards per micro-step" in rows(finding)["parameters for use"]["cause"]


def test_recomputation_explains_a_third_gather():
    trace = rank(3, extra=lambda step, start: fetched(step, start + 10, 2))
    trace.fetches = [fetch(99, 1, 1, step=3, is_recomputation=True)]
    assert said(RULE, trace).status is Status.INFO


def test_gradients_that_the_program_reduces_again_fail_with_the_line():
    def again(step: int, start: float):
        yield sync("all_reduce", start + 95, 1, nbytes=2 * WHOLE, step=step, site=7, elements=0)

    trace = rank(2, extra=again, sites={7: Site(7, "train.py", 40, "average")})
    own = trace.collectives.site == 7
    trace.collectives.elements[own] = ELEMENTS
    finding = said(RULE, trace)
    assert finding.status is Status.FAIL
    assert "as many bytes as the gradients at train.py:40" in finding.cause
    assert finding.saving_bytes_per_step == 2 * WHOLE


@pytest.mark.parametrize(
    ("role", "requested", "op", "status"),
    [
        ("", "broadcast", "broadcast", Status.FAIL),
        ("", "", "broadcast", Status.PASS),
        ("tensor", "all_reduce", "all_reduce", Status.PASS),
        ("", "all_to_all_single", "all_to_all_single", Status.PASS),
    ],
    ids=["deepspeed", "program", "tensor parallel", "experts"],
)
def test_what_nothing_asks_for_is_named_by_who_did(role, requested, op, status):
    def more(step: int, start: float):
        details = {"step": step, "phase": "forward", "requested": requested, "group": 2}
        yield sync(op, start + 5, 1, nbytes=WHOLE // 4, **details)

    trace = rank(2, extra=more, groups={1: group(), 2: group(id=2, role=role)})
    finding = said(RULE, trace)
    assert finding.status is status
    assert rows(finding)["other"]["cause"]


def test_little_of_it_is_not_judged():
    def more(step: int, start: float):
        asked = {"requested": "broadcast", "phase": "forward"}
        yield sync("broadcast", start + 5, 1, nbytes=8192, step=step, **asked)

    assert said(RULE, rank(2, extra=more)).status is Status.PASS
    assert said(RULE, rank(2, extra=more), minor_share=0.001).status is Status.FAIL


def test_what_happens_between_phases_is_named():
    def building(step: int, start: float):
        yield sync("broadcast", start + 95, 1, nbytes=WHOLE, step=step, requested="broadcast")

    finding = said(RULE, rank(2, extra=building))
    assert finding.status is Status.PASS
    assert "building an engine" in rows(finding)["other"]["cause"]


def test_experts_have_groups_of_their_own_in_a_bucket():
    def expert(step: int, start: float):
        shared = {"step": step, "phase": "backward", "flush": 1 + step, "group": 2}
        yield sync("all_reduce", start + 79, 1, nbytes=WHOLE // 2, **shared)

    groups = {1: group(), 2: group(id=2, role="expert_data")}
    trace = rank(2, nbytes=WHOLE // 2, extra=expert, groups=groups)
    for one in trace.flushes:
        one.elements = ELEMENTS
    finding = said(RULE, trace)
    assert finding.status is Status.PASS
    assert rows(finding)["gradients"]["calls asked for"] == "1 to 2"


def test_skipped_steps_of_float16_are_named():
    trace = rank(2)
    table = trace.collectives
    table.words[table.words.index("bfloat16")] = "float16"
    trace.engines[1].parameter_dtype = "float16"
    table.step[(table.phase == table.code("step")) & (table.step == 3)] = -1
    finding = said(RULE, trace)
    assert finding.status is Status.INFO
    assert "25 % of the steps were skipped" in rows(finding)["parameters after the step"]["cause"]


@pytest.mark.parametrize(
    "trace",
    [
        zero_rank(engine=None),
        rank(2, world_size=1),
        rank(1, groups={1: group(), 2: group(id=2, ranks=[0])}, in_group=2),
    ],
    ids=["no engine", "one rank", "gradients of one rank"],
)
def test_it_does_not_apply(trace):
    assert said(RULE, trace).status is Status.NOT_APPLICABLE


def two_engines() -> RankTrace:
    trace = rank(2)
    trace.engines[2] = engine(2)
    return trace


def in_turn(**changes: Any) -> RankTrace:
    """Two engines that take every other step."""
    trace = rank(2)
    trace.engines[2] = msgspec.structs.replace(trace.engines[1], engine=2, **changes)
    for one in trace.steps:
        one.engine = 1 + one.step % 2
    return trace


def test_engines_that_take_turns_are_judged_each_by_its_own():
    finding = said(RULE, in_turn())
    assert finding.status is Status.PASS
    assert {"gradients (engine 1)", "gradients (engine 2)"} <= rows(finding).keys()
    finding = said(RULE, in_turn(parameters=2 * ELEMENTS))
    assert finding.status is Status.INFO
    assert rows(finding)["gradients (engine 1)"]["verdict"] == "as asked"
    assert "50 % of the parameters" in rows(finding)["gradients (engine 2)"]["cause"]


def test_of_two_engines_one_may_be_known():
    hidden = {"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}
    statuses = [finding.status for finding in judged(RULE, in_turn(effective=hidden))]
    assert statuses == [Status.UNKNOWN, Status.PASS]


def test_what_an_engine_accumulates_while_another_steps_is_its_own():
    finding = said(RULE, interleaved())
    assert finding.status is Status.PASS, finding.summary
    found = rows(finding)
    assert found["gradients (engine 1)"]["bytes sent"] == 2 * WHOLE
    assert found["gradients (engine 2)"]["bytes sent"] == WHOLE


def test_without_engines_in_the_records_the_step_decides():
    trace = interleaved()
    trace.collectives.engine[:] = -1
    for one in (*trace.flushes, *trace.spans):
        one.engine = -1
    assert said(RULE, trace).status is not Status.PASS


def test_an_engine_that_takes_no_step_is_judged_by_its_forwards():
    finding = said(RULE, interleaved(reference=3))
    assert finding.status is Status.PASS, finding.summary
    found = rows(finding)["parameters for use (engine 3)"]
    assert found["asked for"] == "once a forward"
    assert found["bytes asked for, at least"] == found["bytes sent"] > 0
    twice = interleaved(reference=3)
    mine = twice.collectives.engine == 3
    for column in (twice.collectives.nbytes, twice.collectives.elements):
        column[mine] *= 4
    finding = said(RULE, twice)
    assert finding.status is Status.FAIL
    assert "parameters for use (engine 3)" in finding.summary


def test_a_reference_model_that_sends_nothing_is_not_spoken_of():
    trace = interleaved(reference=2)
    trace.collectives.on_wire[trace.collectives.engine == 3] = False
    (finding,) = judged(RULE, trace)
    assert finding.status is Status.PASS
    assert not [name for name in rows(finding) if "engine 3" in name]


def test_of_an_engine_that_trains_and_reduces_nothing_nothing_is_known():
    trace = interleaved()
    table = trace.collectives
    table.on_wire[(table.engine == 2) & (table.phase == table.code("backward"))] = False
    assert "no recorded collective was recognised as a reduction of gradients" in " ".join(
        f.summary for f in judged(RULE, trace)
    )


def test_parameters_gathered_to_generate_are_not_of_the_training():
    def generating(number: int, start: float):
        asked = {"requested": "all_gather_into_tensor", "fetch": 98, "step": number}
        for n in range(9):
            yield sync("all_gather_into_tensor", start + 90 + n, 1, nbytes=WHOLE, **asked)

    finding = said(RULE, rank(3, extra=generating))
    assert finding.status is Status.PASS, finding.summary
    assert "generation" in rows(finding)["other"]["cause"]


def silent() -> RankTrace:
    trace = rank(2)
    trace.collectives.flush[:] = 0
    return trace


def sampled() -> RankTrace:
    trace = rank(2)
    trace.is_sampled = True
    return trace


@pytest.mark.parametrize(
    "trace",
    [
        rank(3, zero={"zero_quantized_weights": True}),
        two_engines(),
        silent(),
        sampled(),
        captured(window=range(0)),
    ],
    ids=["quantized", "two engines", "no gradients", "sampled", "counters"],
)
def test_it_cannot_tell(trace):
    assert said(RULE, trace).status is Status.UNKNOWN


@pytest.mark.parametrize("zero", [None, [], {"stage": "two"}, {"stage": 3, "reduce_scatter": 7}])
def test_a_broken_configuration_is_no_error(zero):
    effective = {"zero_optimization": zero, "gradient_accumulation_steps": "many"}
    broken = EngineConfig(engine=1, effective=effective, parameter_dtype="int7")
    assert said(RULE, rank(2, engine=broken)).status is not Status.ERROR
    assert msgspec.json.decode(msgspec.json.encode(broken), type=EngineConfig) == broken


def ddp(*, sent: float = 1.0, extra: Any = None, **fields: Any) -> RankTrace:
    """A rank of a DDP model with one bucket, of which a share is sent."""
    given = {"engine": None, "layouts": [BucketLayout(0, 1, [WHOLE])], **fields}
    if extra is not None:
        given["extra"] = extra
    trace = zero_rank(nbytes=round(WHOLE * sent), flushes=[], **given)
    trace.collectives.flush[:] = 0
    return trace


def test_ddp_reduces_its_buckets():
    found = rows(said(RULE, ddp()))["gradients"]
    assert (found["verdict"], found["bytes sent"]) == ("as asked", WHOLE)


def test_a_communication_hook_of_ddp_is_named():
    trace = ddp(sent=0.5)
    trace.collectives.words[trace.collectives.words.index("float32")] = "float16"
    trace.collectives.elements[:] *= 2
    finding = said(RULE, trace)
    assert finding.status is Status.INFO
    assert "a communication hook" in rows(finding)["gradients"]["cause"]


def test_steps_without_buckets_are_not_as_asked_where_a_communication_hook_sends():
    """PowerSGD begins after some steps; local SGD then reduces only among a few ranks."""
    hooked = {"layouts": [BucketLayout(0, 1, [WHOLE], comm_hook="powerSGD_hook")]}
    assert said(RULE, ddp(**hooked)).status is Status.PASS
    trace = ddp(**hooked)
    trace.collectives.nbytes[trace.collectives.step > 3] = 1 << 13
    finding = said(RULE, trace)
    assert finding.status is Status.UNKNOWN
    assert "powerSGD_hook of DDP is not modelled" in finding.summary


def test_models_of_ddp_may_train_in_turn():
    both = [BucketLayout(0, 1, [WHOLE]), BucketLayout(1, 1, [WHOLE])]
    assert said(RULE, ddp(layouts=both)).status is Status.PASS


def test_buckets_that_fit_no_layout_leave_it_open():
    assert said(RULE, ddp(sent=0.5)).status is Status.UNKNOWN


def test_buffers_of_ddp_are_named():
    def buffers(step: int, start: float):
        yield sync("broadcast", start + 1, 1, nbytes=WHOLE, step=step, phase="forward")

    finding = said(RULE, ddp(extra=buffers))
    assert "broadcast_buffers" in rows(finding)["other"]["cause"]


def fsdp(gathers: int, op: str = "_reduce_scatter_base_", **reduced: Any) -> RankTrace:
    """A rank of one FSDP unit, reduced once and gathered some times in each step.

    With `reduced` the unit is also all-reduced: by FSDP among replicas, or by whom it says.
    """

    def gathered(step: int, start: float):
        if reduced:
            yield sync("all_reduce", start + 70, 1, step=step, flush=1 + step, **reduced)
        for n in range(gathers):
            details = {"step": step, "phase": "forward", "fetch": 50 + n}
            yield sync("_allgather_base_", start + n, 1, nbytes=2 * WHOLE, **details)

    unit = {"library": "FSDP2", "module": "(root)", "elements": ELEMENTS}
    fetches = [fetch(50 + n, n, 1, step=3, **unit) for n in range(gathers)]
    trace = zero_rank(engine=None, op=op, nbytes=2 * WHOLE, extra=gathered, fetches=fetches)
    for one in trace.flushes:
        one.library, one.module, one.stage = "FSDP2", "(root)", -1
    return trace


@pytest.mark.parametrize(("gathers", "status"), [(1, "pass"), (2, "pass"), (4, "fail")])
def test_fsdp_gathers_its_units_once_or_twice(gathers, status):
    finding = said(RULE, fsdp(gathers))
    assert finding.status.value == status
    assert rows(finding)["gradients"]["verdict"] == "as asked"


def test_fsdp_with_tensor_parallelism_has_no_replicas():
    """DTensor all-reduces the gradients of norms, which all its ranks hold, in the same flush."""
    name = "DTensor Partial(sum) -> Replicate on tp"
    for by, verdict in (({"requested": name}, "as asked"), ({}, "explained")):
        finding = said(RULE, fsdp(1, nbytes=512, **by))
        assert rows(finding)["gradients"]["verdict"] == verdict


def test_units_that_fsdp_only_all_reduces_have_no_replicas():
    trace = fsdp(1, op="all_reduce")
    trace.collectives.requested[:] = trace.collectives.code("")
    assert rows(said(RULE, trace))["gradients"]["verdict"] == "as asked"


def test_small_messages_of_the_program_stand_apart():
    def scalars(step: int, start: float):
        yield sync("all_reduce", start + 85, 1, nbytes=4, step=step, requested="all_reduce")
        yield sync("all_reduce", start + 95, 1, nbytes=4, step=step)

    found = rows(said(RULE, rank(2, extra=scalars)))
    assert found["small messages"]["calls"] == 1
    assert found["small messages of the program"]["calls"] == 1


def test_weights_that_stages_of_a_pipeline_share_are_named():
    def tied(step: int, start: float):
        given = {"step": step, "requested": "all_reduce", "phase": "ReduceTiedGrads"}
        yield sync("all_reduce", start + 85, 1, nbytes=WHOLE // 4, **given)

    trace = rank(1, extra=tied)
    assert said(RULE, trace).status is Status.FAIL
    trace.engines[1].pipeline_stages = 2
    finding = said(RULE, trace)
    assert finding.status is Status.PASS
    assert "pipeline" in rows(finding)["other"]["cause"]


def test_a_loop_that_reduces_its_own_gradients_asked_for_nothing():
    trace = zero_rank(engine=None)
    trace.flushes.clear()
    trace.collectives.flush[:] = 0
    finding = said(RULE, trace)
    assert finding.status is Status.NOT_APPLICABLE
    assert "no DeepSpeed engine, DDP or FSDP" in finding.summary


@pytest.mark.parametrize(("more", "status"), [(0.5, Status.INFO), (0.52, Status.FAIL)])
def test_two_gathers_may_exceed_their_bytes_by_the_tolerance(more, status):
    def again(step: int, start: float):
        asked = {"requested": "all_gather_into_tensor", "phase": "forward", "fetch": 99}
        for share in (1, more):
            yield sync(
                "all_gather_into_tensor",
                start + 10,
                1,
                nbytes=int(WHOLE * share),
                step=step,
                **asked,
            )

    finding = said(RULE, rank(3, extra=again), tolerance=0.25)
    assert finding.status is status
