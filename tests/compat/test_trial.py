"""One row that fails takes no other with it, and only those that torch can run are compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.compat import trial
from tests.compat.trial import Trial
from tests.dist.launch import Result

ROWS = ["one", "two", "three"]
WELL = Result(0, "", 1.0)


class Runs:
    """Stands for the launcher: rows end as `bare` and `recorded` say, else well."""

    def __init__(self, bare: dict[str, Any], recorded: dict[str, Any]) -> None:
        self._ends = {True: bare, False: recorded}

    def __call__(self, program: Path, nproc: int, *, args: list[Any], **_: Any) -> Result:
        progress, rows, out, _table, *options = args
        out.mkdir(parents=True, exist_ok=True)
        for row in rows.split(","):
            returncode, error = self._ends[bool(options)].get(row, (0, ""))
            if returncode:
                progress.mkdir(parents=True)
                (progress / "rank0.json").write_text(json.dumps([row, ""]))
                (progress / "rank1.json").write_text(json.dumps([row, error]))
                return Result(returncode, "", 1.0)
        return WELL


Try = Callable[..., Trial]


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Try:
    def try_(bare: dict[str, Any], recorded: dict[str, Any]) -> Trial:
        monkeypatch.setattr(trial, "launch", Runs(bare, recorded))
        monkeypatch.setattr(trial.wire_rows, "ROWS", dict.fromkeys(ROWS))
        monkeypatch.setattr(trial.Table, "agrees", lambda *_: True)
        monkeypatch.setattr(trial.Table, "faults", lambda *_: iter(()))
        return Trial(Path("python"), tmp_path, "ROWS")

    return try_


def test_a_row_that_fails_by_itself_is_named_and_not_counted(tried: Try) -> None:
    one = tried(bare={"one": (1, "TypeError: no such thing")}, recorded={})
    assert one.bare == {"one": "TypeError: no such thing"}
    assert one.ran == ["two", "three"]
    assert list(one.wrong("auto")) == []


def test_several_rows_may_fail(tried: Try) -> None:
    ends = {"one": (1, "TypeError: a"), "three": (1, "TypeError: b")}
    assert tried(bare=ends, recorded={}).ran == ["two"]


def test_a_row_that_hangs_is_named(tried: Try) -> None:
    assert tried(bare={"two": (124, "")}, recorded={}).bare == {"two": "hangs"}


def test_a_row_that_fails_with_dsprof_only_is_wrong(tried: Try) -> None:
    one = tried(bare={}, recorded={"two": (1, "ValueError: ours")})
    assert one.ran == ROWS
    assert list(one.wrong("auto")) == [("two", "ValueError: ours")]


def test_a_row_that_differs_is_wrong(tried: Try, monkeypatch: pytest.MonkeyPatch) -> None:
    one = tried(bare={}, recorded={})
    monkeypatch.setattr(trial.Table, "agrees", lambda _, row, __: row != "three")
    assert list(one.wrong("auto")) == [("three", "not as torch counts")]


def test_a_run_that_fails_beside_its_rows_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(*_: Any, args: list[Any], **__: Any) -> Result:
        args[2].mkdir(parents=True)
        return Result(1, "the oracle must not share", 1.0)

    monkeypatch.setattr(trial, "launch", launch)
    with pytest.raises(RuntimeError, match="must not share"):
        Trial(Path("python"), tmp_path, "ROWS")
