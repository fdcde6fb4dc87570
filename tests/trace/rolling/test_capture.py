"""A request to keep steps: of this user only, of a fixed form, and one answer for all ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dsprof.errors import DsprofError
from dsprof.trace.rolling.capture import (
    PATIENCE_S,
    Captured,
    Request,
    agree,
    agreed,
    ask,
    asked,
    decoded,
    withdraw,
)

FITTING = {"id": "abc", "steps": 20}


def test_ranks_read_what_was_asked(tmp_path: Path) -> None:
    assert asked(tmp_path) is None
    request = ask(tmp_path, 20)
    assert asked(tmp_path) == request
    assert request.steps == 20


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0},
        {"steps": 1001},
        {"steps": "20"},
        {"id": "../x"},
        {"id": "a\n"},
        {"command": "rm"},
        {"asked_s": 1e308},
        {"run": "x" * 101},
    ],
)
def test_a_request_of_another_form_is_ignored(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / ".capture.json"
    path.write_text(json.dumps(FITTING))
    assert asked(tmp_path) == Request("abc", 20)
    path.write_text(json.dumps(FITTING | change))
    assert asked(tmp_path) is None


def behind_a_link(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    elsewhere.write_text(json.dumps(FITTING))
    path.symlink_to(elsewhere)


def of_another_user(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    path.write_text(json.dumps(FITTING))
    os.chown(path, 12345, -1)


def huge(path: Path) -> None:
    path.write_text(json.dumps(FITTING) + " " * (1 << 20))


def in_a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.mkdir()


def deeply_nested(path: Path) -> None:
    path.write_text("[" * 4000)


@pytest.mark.parametrize(
    "hostile", [behind_a_link, of_another_user, huge, in_a_pipe, a_folder, deeply_nested]
)
def test_a_hostile_request_is_ignored(tmp_path: Path, hostile: Callable[[Path], None]) -> None:
    hostile(tmp_path / ".capture.json")
    assert asked(tmp_path) is None


@pytest.mark.parametrize(
    "change",
    [{"steps": 1001}, {"first_step": -1}, {"why": "slow"}, {"cause": "x" * 101}, {"x": 1}],
)
def test_an_answer_of_another_form_is_ignored(change: dict[str, object]) -> None:
    answer = {"id": "abc", "first_step": 100, "steps": 20}
    assert decoded(json.dumps(answer).encode()) == Captured("abc", 100, 20)
    assert decoded(json.dumps(answer | change).encode()) is None


def test_the_first_proposal_counts_for_all(tmp_path: Path) -> None:
    request = ask(tmp_path, 20)
    assert agreed(tmp_path, request) is None
    first, second = Captured(request.id, 100, 20), Captured(request.id, 105, 20)
    assert [agree(tmp_path, one) for one in (first, second)] == [first, first]
    assert agreed(tmp_path, request) == first


def answered(folder: Path) -> Request:
    request = ask(folder, 20)
    agree(folder, Captured(request.id, 100, 20))
    return request


def test_a_request_displaces_no_other_that_waits(tmp_path: Path) -> None:
    first = ask(tmp_path, 20)
    wait = r"another request waits for an answer; try again after it, in at most (59|60) s$"
    with pytest.raises(DsprofError, match=wait):
        ask(tmp_path, 30)
    assert asked(tmp_path) == first


def waits_no_longer(folder: Path) -> None:
    age(folder, PATIENCE_S)  # its command was killed


def is_of_the_future(folder: Path) -> None:
    age(folder, -1e6)


def is_damaged(folder: Path) -> None:
    (folder / ".capture.json").write_text("{")


def age(folder: Path, seconds: float) -> None:
    path = folder / ".capture.json"
    os.utime(path, (path.stat().st_mtime - seconds,) * 2)


@pytest.mark.parametrize("before", [waits_no_longer, is_of_the_future, is_damaged])
def test_a_request_that_is_not_followed_makes_room(
    tmp_path: Path, before: Callable[[Path], None]
) -> None:
    ask(tmp_path, 20)
    before(tmp_path)
    second = ask(tmp_path, 30)
    assert asked(tmp_path) == second


def test_a_request_of_somebody_else_is_not_withdrawn(tmp_path: Path) -> None:
    withdraw(tmp_path, Request("another", 20))
    request = ask(tmp_path, 20)
    withdraw(tmp_path, Request("another", 20))
    assert asked(tmp_path) == request
    withdraw(tmp_path, request)
    assert asked(tmp_path) is None


def test_old_answers_are_forgotten(tmp_path: Path) -> None:
    old, new = (answered(tmp_path) for _ in range(2))
    os.utime(tmp_path / f".capture-{old.id}.json", (0, 0))
    ask(tmp_path, 20)
    assert agreed(tmp_path, old) is None
    assert agreed(tmp_path, new) is not None
