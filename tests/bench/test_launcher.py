"""The launcher of `dsprof bench`: what it refuses, and its exit code; and what a rank says."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from dsprof.bench.__main__ import _keep
from dsprof.bench.launcher import main
from dsprof.bench.options import Options
from tests.factories.baseline import baseline, cost


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception | None], list[Any]]:
    """Let torchrun end so, and return what it was asked for."""

    def end(error: Exception | None) -> list[Any]:
        asked: list[Any] = []

        def run(arguments: Any) -> None:
            asked.append(arguments)
            if error is not None:
                raise error

        monkeypatch.setattr(torchrun, "run", run)
        return asked

    return end


def failed(*exit_codes: int) -> ChildFailedError:
    """What torchrun raises if ranks failed, in this order."""
    failures = {}
    for rank, code in enumerate(exit_codes):
        failures[rank] = ProcessFailure(local_rank=rank, pid=1, exitcode=code, error_file="")
        failures[rank].timestamp = rank
    return ChildFailedError("dsprof.bench", failures)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["2", "--backend", "bogus"], "torch has no backend 'bogus'; it has gloo"),
        (["abc"], "--nproc-per-node abc: Unsupported nproc_per_node value: abc; give a number"),
        (["1"], "a single rank cannot communicate: set --nproc-per-node to 2 or more"),
        (["0"], "a single rank cannot communicate"),
    ],
)
def test_mistakes_are_one_line_and_start_nothing(ends, capsys, arguments, message):
    asked = ends(None)
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert asked == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, 0),
        (failed(1, -signal.SIGTERM), 1),
        (failed(2, 3), 2),
        (SignalException("ended", signal.SIGINT), 130),
    ],
)
def test_it_ends_as_the_first_rank_that_failed(ends, capsys, error, code):
    asked = ends(error)
    assert main(["2", "--sizes", "4K"]) == code
    assert capsys.readouterr().err == ""
    (arguments,) = asked
    assert (arguments.nproc_per_node, arguments.training_script) == ("2", "dsprof.bench")


def test_a_killed_rank_is_named(ends, capsys):
    ends(failed(-signal.SIGKILL))
    assert main(["2"]) == 137
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "dsprof: rank 0 was ended by SIGKILL; nothing was written"


def test_a_name_that_is_no_text_is_said(tmp_path, capsys):
    file = tmp_path / os.fsdecode(b"b\xff.json")
    _keep(baseline(cost()), Options(file))
    assert file.is_file()
    assert capsys.readouterr().out.endswith("/b\\udcff.json\n")
