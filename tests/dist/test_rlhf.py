"""Several engines in one process: each is judged by its own traffic."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.model import Diagnosis
from dsprof.findings.finding import Finding, Status
from dsprof.trace.run import find_run
from tests.dist.launch import PROGRAMS, launch

pytestmark = [pytest.mark.dist, pytest.mark.long]

REFERENCE, ACTOR, CRITIC = range(3)  # in the order of their first use


def of(diagnosis: Diagnosis, rule: str) -> list[Finding]:
    return [one for one in diagnosis.findings if one.rule == rule]


def test_actor_critic_and_reference_are_judged_each_by_itself(tmp_path: Path) -> None:
    launch(PROGRAMS / "rlhf.py", 2, args=[tmp_path], imported="compiler").check()
    diagnosis = diagnose(find_run([tmp_path]))
    settings = {one.engine: one.effective for one in diagnosis.environment.engines}
    stages = {n: one["zero_optimization"]["stage"] for n, one in settings.items()}
    assert stages == {REFERENCE: 3, ACTOR: 3, CRITIC: 2}

    (traffic,) = of(diagnosis, "unexplained-traffic")
    assert traffic.status in (Status.PASS, Status.INFO)
    lines = {str(row[0]): row for row in traffic.evidence[0].rows}
    for what in (
        f"parameters for use (engine {REFERENCE})",
        f"gradients (engine {ACTOR})",
        f"gradients (engine {CRITIC})",
        f"parameters after the step (engine {CRITIC})",
    ):
        assert lines[what][8] == "as asked", lines[what]
    assert "generation" in str(lines[f"other (engine {ACTOR})"][9])

    (by_design,) = of(diagnosis, "allreduce-for-sharded-gradients")
    assert by_design.summary.startswith(f"Engine {CRITIC}: ZeRO-2")
    (repeated,) = of(diagnosis, "reduction-every-micro-step")
    assert repeated.status is Status.INFO
    assert repeated.summary.startswith(f"Engine {CRITIC}: Gradients are reduced 2 times")

    # What ZeRO-3 compares between ranks after each generation is nothing that the program sends.
    assert [one.status for one in of(diagnosis, "scalar-collectives")] == [Status.PASS]
