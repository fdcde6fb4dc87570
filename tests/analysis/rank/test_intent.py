from __future__ import annotations

import pytest

from dsprof.analysis.rank.intent import Course, Span, accumulation_of, asked_by_zero, obstacle
from dsprof.trace.schema import ParameterLayout
from tests.factories.trace import engine


@pytest.mark.parametrize(("written", "steps"), [(4, 4), (1, 1), (0, 1), (-1, 1), ("auto", 1)])
def test_a_step_has_one_micro_step_at_least(written, steps):
    config = engine(2)
    config.effective["gradient_accumulation_steps"] = written
    assert accumulation_of(config) == steps


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
    (asked,) = [one for one in asked_by_zero(config, course) if one[0].kind == "parameters"]
    demand, expected = asked
    assert (demand.why, expected.calls) == (why, None)
    assert expected.nbytes == Span(500 * 2 * 8, most * 500 * 2 * 8)
