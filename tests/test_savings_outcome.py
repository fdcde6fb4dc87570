"""How `make savings` judges what was predicted and what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.savings import Outcome
from examples.wrong.cases import CASES
from examples.wrong.training import merged

MISTAKE = next(case for case in CASES.values() if case.saves)
DECOY = next(case for case in CASES.values() if not case.saves)
ROUNDS = [[100.0, 80.0, 101.0], [110.0, 90.0, 112.0], [100.0, 79.0, 100.0]]
GOOD = Outcome(MISTAKE, (15.0, 25.0), ROUNDS)


def test_a_saving_is_taken_against_the_runs_before_and_after_it():
    assert GOOD.saved_ms == pytest.approx(21.0)
    assert GOOD.noise_ms == 1.0
    assert GOOD.error == pytest.approx(20 / 21 - 1)
    assert GOOD.misses == ""


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({"predicted": None}, "no saving was predicted"),
        ({"predicted": (10.0, 20.5)}, "range too wide, out of range"),
        ({"predicted": (22.0, 30.0)}, "out of range"),
        ({"rounds": [[100.0, 86.0, 112.0]]}, "hidden in noise"),
    ],
)
def test_what_misses_is_said(change, missed):
    assert replace(GOOD, **change).misses == missed


@pytest.mark.parametrize(
    ("predicted", "rounds", "missed"),
    [
        (None, [[100.0, 99.0, 101.0]], ""),
        ((1.0, 2.0), [[100.0, 99.0, 101.0]], ""),
        ((10.0, 20.0), [[100.0, 99.0, 101.0]], "promised"),
        (None, ROUNDS, "saved"),
    ],
)
def test_what_only_looks_wasteful_must_save_nothing(predicted, rounds, missed):
    assert Outcome(DECOY, predicted, rounds).misses == missed


def test_a_patch_is_merged_section_by_section():
    config = {"zero_optimization": {"stage": 1, "reduce_bucket_size": 5}, "bf16": {}}
    found = merged(config, {"zero_optimization": {"reduce_bucket_size": 9}})
    assert found == {"zero_optimization": {"stage": 1, "reduce_bucket_size": 9}, "bf16": {}}
    assert merged(config, None) == config


def test_the_cases_are_as_many_as_were_promised():
    assert sum(case.saves for case in CASES.values()) >= 8
    assert sum(not case.saves for case in CASES.values()) >= 2
