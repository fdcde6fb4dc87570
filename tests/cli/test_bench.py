"""`dsprof bench`: what it becomes, and what it refuses before anything is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dsprof.__main__ import main
from dsprof.environment.machine import Accelerator

PROGRAM = ["-m", "dsprof.bench", "--output", "dsprof-baseline.json"]


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
    (command,) = started
    assert command[:4] == [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    assert command[4:] == ["--nproc-per-node", "3", *PROGRAM, "--sizes", "4096,1048576"]


def test_within_a_launcher_it_is_a_rank(started, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit):
        main(["bench", "--backend", "gloo"])
    assert started == [[sys.executable, *PROGRAM, "--backend", "gloo"]]


@pytest.mark.parametrize("ranks", ["1", "auto", "gpu"])
def test_a_single_rank_is_refused_before_a_launcher_starts(started, capsys, monkeypatch, ranks):
    gpu = Accelerator(vendor="nvidia", name="a GPU")
    monkeypatch.setattr("dsprof.environment.machine.accelerators", lambda: [gpu])
    monkeypatch.setattr("dsprof.cli.bench._torch_uses_gpu", lambda: True)
    assert main(["bench", "--nproc-per-node", ranks]) == 2
    assert "with one GPU also set --backend gloo" in capsys.readouterr().err
    assert started == []


def test_a_gpu_that_torch_cannot_use_leaves_the_ranks_to_the_launcher(started, monkeypatch):
    gpu = Accelerator(vendor="nvidia", name="a GPU")
    monkeypatch.setattr("dsprof.environment.machine.accelerators", lambda: [gpu])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit):
        main(["bench"])
    assert started[0][4:6] == ["--nproc-per-node", "auto"]


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
