"""The example for CI: its training keeps its budget, and another one breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsprof.__main__ import main
from tests.cli.workflow import workflow_commands
from tests.dist.launch import ROOT, launch

pytestmark = [pytest.mark.dist, pytest.mark.long]


@pytest.mark.parametrize(("stage", "code"), [("2", 0), ("3", 1)])
def test_the_budget_tells_stages_apart(tmp_path: Path, stage: str, code: int) -> None:
    (words,) = workflow_commands("python")
    script = next(number for number, word in enumerate(words) if word.startswith("examples/"))
    given = words[script + 1 :]
    given[given.index("--stage") + 1] = stage
    env = {"DSPROF": "1", "DSPROF_OUT": str(tmp_path / "out")}
    launch(ROOT / words[script], args=given, env=env, imported="torch").check()
    budget = str(ROOT / "examples" / "budget.yaml")
    assert main(["check", str(tmp_path / "out"), "--budget", budget]) == code
