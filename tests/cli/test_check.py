"""`dsprof check`: exit codes, one line a broken limit, the example for CI."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsprof.__main__ import main
from dsprof.cli import COMMANDS, Parser
from dsprof.diagnosis.budget.limits import load_budget
from dsprof.rules import RULES
from dsprof.trace.readers.logs.tracebacks import BEGIN
from tests.cli.command import ROOT
from tests.cli.workflow import workflow_commands
from tests.factories.trace import header
from tests.factories.trace_files import write_trace


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a run whose ranks send 1 MiB in one call a step."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for rank in range(2):
        write_trace(tmp_path / "run" / f"trace.rank0000{rank}.json", header(rank, 2), steps=30)
    return tmp_path


def check(folder: Path, text: str, *arguments: str) -> int:
    """Check a budget; the traces are too bare for many rules to tell."""
    undecided = ", ".join(rule.meta.id for rule in RULES)
    (folder / "budget.yaml").write_text(f"{text}\nmay_be_unknown: [{undecided}]\n")
    return main(["check", *(arguments or ("run",)), "--budget", "budget.yaml"])


LOOSE = "bytes_per_step: 1048576\noperations_per_step: 1\nexposed_share: 0.05\n"


def test_a_run_within_its_budget(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(folder, LOOSE) == 0
    assert capsys.readouterr().out == "budget.yaml: the budget holds\n"


def test_each_broken_limit_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(folder, "bytes_per_step: 1048575\nexposed_share: 0.04\n") == 1
    assert capsys.readouterr().out.splitlines() == [
        "budget.yaml:1:17: bytes_per_step is 1,048,576, more than 1,048,575",
        "budget.yaml:2:16: exposed_share is 0.05, more than 0.04",
    ]


def test_an_unknown_verdict_fails_where_all_are_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "lenient.yaml").write_text(f"{LOOSE}findings: {{critical: 0}}\n")
    assert main(["check", "run", "--budget", "lenient.yaml"]) == 0
    holds = "lenient.yaml: the budget holds; 21 verdicts are unknown: low-bus-bandwidth, "
    said = capsys.readouterr().out
    assert said.startswith(holds)
    assert said.endswith(" and 15 more\n")
    (folder / "strict.yaml").write_text(f"{LOOSE}findings: {{critical: 0}}\nmay_be_unknown: []\n")
    assert main(["check", "run", "--budget", "strict.yaml"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert all(" could not be judged (" in line for line in said[:-1])
    allowed = said[-1].removeprefix("To allow these, write: ")
    (folder / "strict.yaml").write_text(f"{LOOSE}findings: {{critical: 0}}\n{allowed}\n")
    assert main(["check", "run", "--budget", "strict.yaml"]) == 0


def test_a_saved_diagnosis_is_checked_as_the_traces_are(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "run", "--format", "json", "-o", "saved.json"]) == 0
    assert check(folder, LOOSE, "saved.json") == 0
    assert check(folder, "operations_per_step: 0", "saved.json") == 1


@pytest.mark.parametrize("chosen", ["--steps 2:4", "--ranks 0", "--epoch 1", "--engine dask://h:1"])
def test_of_a_saved_diagnosis_no_part_is_checked_in_silence(
    folder: Path, capsys: pytest.CaptureFixture[str], chosen: str
) -> None:
    assert main(["report", "run", "--format", "json", "-o", "saved.json"]) == 0
    (folder / "b.yaml").write_text(LOOSE)
    assert main(["check", "saved.json", "--budget", "b.yaml", *chosen.split()]) == 2
    assert "saved.json: a saved diagnosis is shown as it is" in capsys.readouterr().err


def test_ranks_that_were_not_checked_are_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    next((folder / "run").glob("trace.rank00001*")).unlink()
    check(folder, LOOSE)
    assert "the budget holds; 1 of 2 ranks are missing" in capsys.readouterr().out


def test_the_log_of_a_run_that_failed_holds_no_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    budget = tmp_path / "budget.yaml"
    budget.write_text("bytes_per_step: 1e9\nmay_be_unknown: [bytes_per_step]\n")
    log.write_text("\n".join(f"[rank3]: {line}" for line in (BEGIN, "KeyError: 'labels'")))
    assert main(["check", str(log), "--budget", str(budget)]) == 1
    assert "and data-quality is not in may_be_unknown: Rank 3 (KeyError) failed." in (
        capsys.readouterr().out
    )
    budget.write_text("bytes_per_step: 1e9\nmay_be_unknown: [bytes_per_step, data-quality]\n")
    main(["check", str(log), "--budget", str(budget)])
    assert "the budget holds; 3 ranks missing" in capsys.readouterr().out


def test_a_part_that_was_checked_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "budget.yaml").write_text(LOOSE)
    part = ["--ranks", "0", "--steps", "0:2"]
    assert main(["check", "run", "--budget", "budget.yaml", *part]) == 0
    said = "the budget holds; only a part was checked: rank 0, steps 0 to 1"
    assert said in capsys.readouterr().out


def test_mistakes_are_exit_code_2(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(folder, "byte_per_step: 1") == 2
    assert "budget.yaml:1:1: unknown key 'byte_per_step'" in capsys.readouterr().err
    assert check(folder, LOOSE, "missing") == 2
    assert main(["check", "run", "--budget", "missing.yaml"]) == 2
    assert main(["check", "run"]) == 2


def test_the_example_for_github_actions_calls_what_there_is() -> None:
    names = [command.name for command in COMMANDS]
    for words in workflow_commands("dsprof"):
        command = COMMANDS[names.index(words[0])]
        parser = Parser(prog="dsprof")
        command.prepare(parser)
        arguments = parser.parse_args(words[1:])
        if command.name == "check":
            budget = load_budget(ROOT / arguments.budget, [rule.meta.id for rule in RULES])
            assert budget.figures.keys() == {"bytes_per_step", "operations_per_step"}
