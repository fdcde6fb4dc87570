"""A request to keep steps: of this user only, of a fixed form, and one answer for all ranks."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from dsprof.errors import DsprofError
from dsprof.trace.host_folders import MANY_RANKS
from dsprof.trace.rolling.capture import (
    PATIENCE_S,
    Captured,
    Request,
    agree,
    agreed,
    ask,
    asked,
    decoded,
    held,
    withdraw,
)
from tests.factories.trace import header

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
        {"processes": {"0": "x" * 9}},
        {"processes": dict.fromkeys(map(str, range(65)), "x")},
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
    with held(tmp_path, first), pytest.raises(DsprofError, match=wait):
        ask(tmp_path, 30)
    assert asked(tmp_path) == first


def test_a_request_that_another_saw_before_it_was_locked_is_refused(tmp_path: Path) -> None:
    first = ask(tmp_path, 20)
    second = ask(tmp_path, 30)
    with pytest.raises(DsprofError, match="another request waits"), held(tmp_path, first):
        pass
    assert asked(tmp_path) == second


def test_without_locks_a_request_waits_for_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "no locks")))
    first = ask(tmp_path, 20)
    with held(tmp_path, first):
        pass
    with pytest.raises(DsprofError, match="in at most"):
        ask(tmp_path, 30)


def test_many_ranks_are_asked_by_the_key_of_their_run(tmp_path: Path) -> None:
    few, many = ([header(rank, size) for rank in range(size)] for size in (MANY_RANKS, 100))
    assert len(ask(tmp_path, 20, few).processes) == MANY_RANKS
    assert (tmp_path / ".capture.json").stat().st_size < 2000
    request = ask(tmp_path, 20, many)
    assert not request.processes
    assert request.is_of(few[0])
    assert asked(tmp_path) == request


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
