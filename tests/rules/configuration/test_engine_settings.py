from __future__ import annotations

import pytest

from dsprof.rules.configuration.engine_settings import EngineSettings
from dsprof.trace.schema import EngineConfig
from tests.factories.ds_config import zero


def in_force(path: str, **keys: object) -> object:
    settings = EngineSettings(EngineConfig(1, written=zero(2, **keys)), {}, "0.19.8")
    return settings.in_force(f"zero_optimization.{path}")


@pytest.mark.parametrize("part", ["optimizer", "param"])
def test_offloading_as_older_configurations_wrote_it(part):
    old = {"optimizer": "cpu_offload", "param": "cpu_offload_param"}
    device = f"offload_{part}.device"
    assert in_force(device) == "none"
    assert in_force(device, **{old[part]: True}) == "cpu"
    assert in_force(device, **{old[part]: False}) == "none"
