"""The runs that are wrong on purpose are found by the rule that should, and each is measured."""

from __future__ import annotations

import json

import pytest

from benchmarks.savings import PROGRAM
from dsprof.analysis.baseline import SCHEMA_VERSION
from examples.wrong.cases import CASES
from tests.dist.launch import launch

pytestmark = [pytest.mark.dist, pytest.mark.long, pytest.mark.alone]

BASELINE = {
    "schema_version": SCHEMA_VERSION,
    "machine": {"hosts": [], "world_size": 2, "backend": "gloo", "device": "cpu"},
    "costs": [],
}


@pytest.mark.parametrize("name", ["late_rank", "barriers", "scalars", "reduction_every_micro_step"])
def test_a_mistake_is_found_and_its_change_is_tried(name, tmp_path):
    baseline = tmp_path / "baseline.json"
    baseline.write_text(json.dumps(BASELINE))
    args = [name, tmp_path, baseline, "--rounds", 2, "--seconds", 0.1]
    launch(PROGRAM, args=args, imported="compiler").check()
    prediction = json.loads((tmp_path / "prediction.json").read_text())
    assert prediction["status"] == "fail", CASES[name].rule
    low, high = prediction["saving_ms"]
    assert 0 < low < high <= 2 * low
    rounds = json.loads((tmp_path / "measured.json").read_text())
    assert [len(one) for one in rounds] == [3, 3]
    written = [(tmp_path / file).stat().st_mtime for file in ("prediction.json", "measured.json")]
    assert written == sorted(written)
