from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.engines import Engines
from dsprof.trace.schema import EngineConfig
from tests.factories.trace import engine, rank_trace, step, summary


def engines(*ranks: EngineConfig | None) -> Engines:
    return summary(*(rank_trace(rank, engine=one) for rank, one in enumerate(ranks)))[Engines]


def test_settings_in_force_and_as_written_are_apart():
    found = engines(engine(2, 4, overlap_comm=True))
    assert (found.stage, found.accumulation, found.precision) == (2, 4, "bf16")
    assert found.written_zero("overlap_comm") is True
    assert found.zero("reduce_scatter") is True
    assert found.written_zero("reduce_scatter") is None


def test_keys_of_stage_3_are_found_under_either_name():
    found = engines(engine(3, prefetch_bucket_size=7))
    assert found.zero("stage3_prefetch_bucket_size") == 7
    assert found.zero("stage3_max_live_parameters", "unset") == "unset"


def test_the_lowest_rank_that_has_an_engine_speaks_for_all():
    assert engines(None, engine(3), engine(1)).stage == 3


def test_of_several_engines_the_first_that_takes_steps_is_the_main_one():
    steps = [step(0, 0, 1), step(1, 1, 2)]
    given = {0: engine(3), 1: engine(1), 2: engine(2)}
    for number, one in given.items():
        one.engine = number
    assert summary(rank_trace(engines=given, steps=steps))[Engines].stage == 3
    steps[0].engine, steps[1].engine = 2, 1
    assert summary(rank_trace(engines=given, steps=steps))[Engines].stage == 1


def test_without_an_engine_nothing_is_set():
    found = engines(None)
    assert (found.main, found.stage, found.accumulation) == (None, None, 1)
    assert found.zero("stage") is None


@pytest.mark.parametrize("broken", [{"zero_optimization": "2", "bf16": 1}, {}])
def test_a_broken_configuration_counts_as_defaults(broken):
    found = engines(EngineConfig(engine=1, effective=broken, written=broken))
    assert (found.stage, found.accumulation, found.precision) == (0, 1, "fp32")
