from __future__ import annotations

import pytest

from dsprof.analysis.rank.intent import (
    Course,
    Expected,
    Span,
    accumulation_of,
    demands_of_forwards,
    demands_of_zero,
    obstacle,
    stage_of,
)
from dsprof.analysis.rank.intent_torch import Sharing, demands_of_ddp, demands_of_fsdp
from dsprof.trace.schema import BucketLayout, ParameterLayout
from tests.factories.trace import engine, fetch, flush


@pytest.mark.parametrize(("written", "steps"), [(4, 4), (1, 1), (0, 1), (-1, 1), ("auto", 1)])
def test_a_step_has_one_micro_step_at_least(written, steps):
    config = engine(2)
    config.effective["gradient_accumulation_steps"] = written
    assert accumulation_of(config) == steps


@pytest.mark.parametrize(
    ("stage", "optimizer", "found"),
    [(3, "", 3), (1, "BF16_Optimizer", 0), ("auto", "", 0)],
)
def test_the_stage_is_that_at_which_gradients_are_reduced(stage, optimizer, found):
    config = engine(stage)
    config.optimizer = optimizer
    assert stage_of(config) == found


@pytest.mark.parametrize(
    ("section", "what"),
    [
        ({"optimizer": {"type": "OneBitAdam"}}, "OneBitAdam"),
        ({"optimizer": {"type": "Muon"}}, "Muon"),
        ({"optimizer": {"type": "AdamW"}}, ""),
        ({"optimizer": "AdamW"}, ""),
        ({"torch_autocast": {"enabled": True}}, "torch_autocast"),
        ({"torch_autocast": {"enabled": False}}, ""),
        ({"compile": {"deepcompile": True}}, "compile"),
        ({"compile": {"deepcompile": "auto"}}, ""),
    ],
)
def test_features_whose_traffic_is_not_modelled_are_named(section, what):
    config = engine(2)
    config.written = {**config.written, **section}
    assert obstacle(config) == what


@pytest.mark.parametrize(
    ("distance", "why", "most"),
    [(0, "for forward and for backward", 2), (10**9, "once a micro-step", 1)],
)
def test_stage_3_gathers_once_or_twice_a_micro_step(distance, why, most):
    config = engine(3, 2, stage3_max_reuse_distance=distance)
    config.layout, config.parameter_dtype = ParameterLayout(gathered=500), "bfloat16"
    course = Course(steps=4, flushes=8, group_size=2, groups=1)
    (asked,) = [one for one in demands_of_zero(config, course) if one[0].kind == "parameters"]
    demand, expected = asked
    assert (demand.why, expected.calls) == (why, None)
    assert expected.nbytes == Span(500 * 2 * 8, most * 500 * 2 * 8)


OF_EACH = ParameterLayout(
    flat=(600, 420), padded=1008, gathered=500, persistent=40, persistent_parameters=3
)
EITHER = ParameterLayout()
COURSE = Course(steps=4, flushes=8, group_size=2, groups=3)
NO_SCATTER = {"reduce_scatter": False}
TO_OWNERS = {"use_multi_rank_bucket_allreduce": False}


@pytest.mark.parametrize(
    ("stage", "zero", "layout", "asked"),
    [
        # 1000 parameters of 2 bytes, 4 steps of 2 micro-steps: kind, families, calls, bytes.
        (0, {}, EITHER, [("gradients", "all_reduce", (8, 24), (8000, 8000))]),
        (
            1,
            {},
            EITHER,
            [
                ("gradients", "all_reduce", (8, 24), (8000, 8000)),
                ("update", "all_gather", None, (8000, 8080)),
            ],
        ),
        (
            2,
            TO_OWNERS,
            OF_EACH,
            [
                ("gradients", "reduce", (8, 48), (16_000, 16_000)),
                ("update", "all_gather", (8, 8), (1020 * 8, 1020 * 8)),
            ],
        ),
        (
            3,
            {"stage3_max_reuse_distance": 1620},
            OF_EACH,
            [
                ("gradients", "reduce_scatter", (8, 24), (1008 * 16, 1008 * 16)),
                ("update", "all_gather", (8, 8), (1020 * 8, 1020 * 8)),
                ("parameters", "all_gather", None, (8000, 8000)),
                ("update", "all_gather", (12, 12), (320, 320)),
            ],
        ),
        (
            3,
            {"stage3_max_reuse_distance": 1619, "stage3_use_all_reduce_for_fetch_params": True},
            ParameterLayout(gathered=500, persistent=40),
            [
                ("gradients", "reduce_scatter", (8, 24), (16_000, 1010 * 16)),
                ("parameters", "all_reduce", None, (8000, 16_000)),
                ("update", "all_gather", (0, 0), (320, 320)),
            ],
        ),
        (
            3,
            NO_SCATTER,
            ParameterLayout(padded=1008),
            [("gradients", "all_reduce reduce_scatter", (8, 24), (16_000, 1008 * 16))],
        ),
    ],
)
def test_a_stage_asks_for_this_many_calls_and_bytes(stage, zero, layout, asked):
    config = engine(stage, 2, **zero)
    config.parameters, config.layout = 1000, layout
    found = [
        (
            demand.kind,
            " ".join(demand.families),
            expected.calls and (expected.calls.low, expected.calls.high),
            (expected.nbytes.low, expected.nbytes.high),
        )
        for demand, expected in demands_of_zero(config, COURSE)
    ]
    assert found == asked


def test_one_rank_asks_for_nothing():
    assert not list(demands_of_zero(engine(2), COURSE._replace(group_size=1)))


def test_an_engine_that_only_computes_gathers_once_a_forward():
    config = engine(3)
    config.layout = OF_EACH
    ((demand, expected),) = demands_of_forwards(config, 5, 2)
    assert (demand.kind, expected) == ("parameters", Expected(None, Span(5000, 5000)))
    assert not list(demands_of_forwards(config, 5, 1))
    assert not list(demands_of_forwards(engine(3), 5, 2))


def bucket_layout(model: int, *nbytes: int) -> BucketLayout:
    return BucketLayout(model, group=1, nbytes=list(nbytes))


def test_ddp_reduces_the_latest_buckets_of_one_or_more_models():
    layouts = [bucket_layout(1, 10, 20), bucket_layout(1, 30, 40, 50)]
    ((demand, expected),) = demands_of_ddp(layouts, 5)
    assert (demand.kind, demand.families) == ("gradients", ("all_reduce",))
    assert expected == Expected(Span(15, 15), Span(600, 600))
    ((_, expected),) = demands_of_ddp([*layouts, bucket_layout(2, 60)], 5)
    assert expected == Expected(Span(5, 20), Span(300, 900))
    assert not list(demands_of_ddp(layouts, 0))
    assert not list(demands_of_ddp([], 5))


@pytest.mark.parametrize(("replica_reductions", "times"), [(0, 3), (1, 3.25), (3, 3.75)])
def test_fsdp_reduces_and_gathers_each_unit(replica_reductions, times):
    units = [
        flush(number, 0, 1, library="FSDP2", module=module, elements=1000, parameters=5)
        for number, module in enumerate(("a", "b", "b"))
    ]
    gathers = [
        fetch(4, 0, 1, library="FSDP2", elements=300),  # before the first forward
        fetch(1, 0, 1, library="FSDP2", module="a", elements=300),
        fetch(2, 0, 1, library="FSDP2", module="a", elements=300, kind="release"),
        fetch(3, 0, 1, library="ZeRO", module="b", elements=300),
    ]
    sharing = Sharing(3, 6, 4, replica_reductions, gradient_bytes=4, parameter_bytes=2)
    reduced, gathered = demands_of_fsdp(units, gathers, sharing)
    # Two units of 1000 elements and 5 parameters, each filled up to shares of 4 ranks and a tenth.
    low, high = 2000 * 4, (2200 + 4 * 10) * 4
    assert reduced[1] == Expected(None, Span(round(low * times), round(high * times)))
    assert gathered[1] == Expected(None, Span(300 * 6 * 2, round(2.2 * 300 * 6 * 2)))
    _, one = demands_of_fsdp(units, gathers[:1], sharing)  # none has a name yet
    assert one == gathered
