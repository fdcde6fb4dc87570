"""Runs in which nothing is wrong: no rule raises an alarm."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.model import Diagnosis
from dsprof.findings.finding import Severity, Status
from dsprof.trace.run import find_run
from tests.dist.launch import PROGRAMS, launch

pytestmark = [
    pytest.mark.dist,
    pytest.mark.long,
    pytest.mark.alone,  # a run beside it would make a rank late
]

STEPS = 26
ONE_RANK = (
    *("zero0", "zero1-accumulation", "zero2", "zero2-accumulation", "zero3"),
    *("zero1-defaults", "zero2-defaults", "zero3-defaults", "zero2-offload", "zero3-offload"),
    *("ddp", "ddp-accumulation"),
)
TWO_RANKS = (*ONE_RANK, "fsdp2", "moe")
CASES = [*((1, way) for way in ONE_RANK), *((2, way) for way in TWO_RANKS)]

OF_THE_MACHINE = {"late-rank", "step-time-change", "step-time-drift", "periodic-slow-step"}
"""Rules that judge what else the machine does, too: they are right where it disturbs the run."""
ATTEMPTS = 3

Train = Callable[..., dict[str, Diagnosis]]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train on a number of ranks in some ways, else in all, in one process a rank."""

    def train(ranks: int, *ways: str) -> dict[str, Diagnosis]:
        out: Path = tmp_path_factory.mktemp(f"ranks{ranks}")
        program = PROGRAMS / "healthy.py"
        launch(program, ranks, args=[out, *ways], imported="torch").check()
        return {folder.name: diagnose(find_run([folder])) for folder in out.iterdir()}

    return train


@pytest.fixture(scope="module")
def runs(train: Train) -> Train:
    """Return all ways of a number of ranks, which are trained once."""
    return cache(train)


def alarms(diagnosis: Diagnosis) -> set[str]:
    failing = (Status.FAIL, Status.ERROR)
    return {one.rule for one in diagnosis.findings if one.status in failing}


@pytest.mark.parametrize(("ranks", "way"), CASES)
def test_no_rule_raises_an_alarm(runs: Train, train: Train, ranks: int, way: str) -> None:
    diagnosis = runs(ranks)[way]
    assert len(diagnosis.steps.rows) == STEPS
    raised = alarms(diagnosis)
    assert raised - OF_THE_MACHINE == set(), diagnosis.verdict
    for _ in range(ATTEMPTS - 1):
        if raised:
            raised &= alarms(train(ranks, way)[way])
    assert raised == set(), diagnosis.verdict


@pytest.mark.parametrize(("ranks", "way"), CASES)
def test_what_is_worth_knowing_is_no_fault(runs: Train, ranks: int, way: str) -> None:
    told = [one for one in runs(ranks)[way].findings if one.status is Status.INFO]
    assert {one.severity for one in told} <= {Severity.NONE}


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_way_was_trained(runs: Train, ranks: int) -> None:
    assert runs(ranks).keys() == set(ONE_RANK if ranks == 1 else TWO_RANKS)
