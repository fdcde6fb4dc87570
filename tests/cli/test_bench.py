"""`dsprof bench`: what it becomes, and what it refuses before anything is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dsprof.__main__ import main

OPTIONS = ["--output", "dsprof-baseline.json"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands that would have been started."""
    commands: list[list[str]] = []

    def become(command: list[str], variables: object) -> None:
        commands.append(command)
        raise SystemExit(0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dsprof.cli.bench.become", become)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return commands


def test_alone_it_starts_a_launcher(started):
    with pytest.raises(SystemExit):
        main(["bench", "--nproc-per-node", "3", "--sizes", "1M,4K"])
    launcher = [sys.executable, "-m", "dsprof.bench.launcher", "3"]
    assert started == [[*launcher, *OPTIONS, "--sizes", "4096,1048576"]]


def test_within_a_launcher_it_is_a_rank(started, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit):
        main(["bench", "--backend", "gloo"])
    assert started == [[sys.executable, "-m", "dsprof.bench", *OPTIONS, "--backend", "gloo"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "1M,x"], "'x' is not a size"),
        (["--sizes", "1"], "'1' is not a size"),
        (["--sizes", "128G"], "'128G' is not a size"),
        (["-o", "no/such/folder.json"], "there is no folder"),
        (["-o", "."], "it is a folder"),
    ],
)
def test_mistakes_are_one_line_and_start_nothing(started, capsys, arguments, message):
    assert main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert started == []
