from __future__ import annotations

import pytest

from dsprof.analysis.rank.intent import accumulation_of, obstacle
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
