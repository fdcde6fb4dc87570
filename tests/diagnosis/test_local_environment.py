"""The diagnosis of an environment before there is a run."""

from __future__ import annotations

import pytest

from dsprof.diagnosis.document import from_json, to_json
from dsprof.diagnosis.local_environment import diagnose_environment, environment_rules
from dsprof.diagnosis.model import Diagnosis
from dsprof.environment import EnvSnapshot
from dsprof.findings.finding import Status
from dsprof.reports import RENDERERS, render
from tests.factories import machines
from tests.factories.environment import rank_trace


def diagnosed(**variables: str) -> Diagnosis:
    found = EnvSnapshot(variables=variables, **machines.h100_infiniband())
    return diagnose_environment(rank_trace(0).header, found, {})


def test_every_rule_of_the_environment_answers_and_no_other() -> None:
    answered = {finding.rule for finding in diagnosed().findings}
    assert answered == {rule.meta.id for rule in environment_rules()}
    assert "misspelt-variable" in answered
    assert "low-comm-overlap" not in answered


def test_the_gravest_fault_leads() -> None:
    found = diagnosed(NCCL_ALGO="Tree", NCCL_P2P_DISABLE="1")
    assert found.findings[0].rule == "disabled-transport"
    assert "checked for nccl: NCCL_P2P_DISABLE=1" in found.verdict
    assert found.verdict.endswith("And 1 more.")


def test_a_healthy_machine_has_no_fault() -> None:
    found = diagnosed(NCCL_DEBUG="WARN")
    assert found.verdict == "No problems found in this environment, checked for nccl."
    assert not [f for f in found.findings if f.status in (Status.FAIL, Status.ERROR)]


def test_a_python_without_torch_is_said_to_be_one() -> None:
    found = diagnose_environment(rank_trace(0).header, EnvSnapshot(), {})
    assert "this Python has no torch" in found.verdict


@pytest.mark.parametrize("form", [renderer.name for renderer in RENDERERS])
def test_every_report_shows_it(form: str) -> None:
    found = diagnosed(NCCL_P2P_DISABLE="1")
    assert b"NCCL_P2P_DISABLE" in render(found, form)


def test_it_can_be_saved() -> None:
    found = diagnosed(NCCL_P2P_DISABLE="1")
    assert to_json(from_json(to_json(found), "here")) == to_json(found)
