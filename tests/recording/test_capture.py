"""Ranks follow one request with the same steps, and tell each other of a slow one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from dsprof.recording.capture import Capture
from dsprof.trace.reader import read_trace
from dsprof.trace.rolling.capture import ask
from dsprof.trace.rolling.writer import RollingWriter
from dsprof.trace.schema import Header
from tests.factories.month import FastMotion

AT = (100, 103)
"""The steps in which two ranks are."""


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[tuple[Capture, RollingWriter]]]:
    memory = tmp_path / "memory"
    memory.mkdir()
    with patch("dsprof.recording.capture.memory_folders", lambda: iter([memory])):
        yield [_rank(tmp_path, rank) for rank in (0, 1)]


def _rank(folder: Path, rank: int) -> tuple[Capture, RollingWriter]:
    header = Header(1, "run", rank, 2, "host", 1, 0, 0, local_rank=rank)
    writer = FastMotion(folder, 10**6, rank).writer

    def fail(_: str, error: BaseException) -> None:
        raise error

    return Capture(header, folder, writer, lambda: AT[rank], fail), writer


def test_all_ranks_keep_the_same_steps_once(
    tmp_path: Path, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    ask(tmp_path, 20)
    for _ in range(3):
        for capture, _ in ranks:
            capture._tick()
    assert [[*writer.wanted] for _, writer in ranks] == [[range(105, 125)]] * 2


def test_a_request_so_soon_after_another_is_ignored(
    tmp_path: Path, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    capture, writer = ranks[0]
    for steps in (20, 30):
        ask(tmp_path, steps)
        capture._tick()
    assert [*writer.wanted] == [range(105, 125)]


def test_a_slow_step_of_one_rank_is_kept_on_the_others(
    ranks: list[tuple[Capture, RollingWriter]],
) -> None:
    (_, quick), (capture, slow) = ranks
    slow.slow_step = 90
    capture._tick()
    ranks[0][0]._tick()
    assert [*slow.wanted] == [*quick.wanted] == [range(86, 98)]


def test_steps_of_the_past_are_kept_while_their_details_are_there(tmp_path: Path) -> None:
    run = FastMotion(tmp_path, 2_000_000)
    with run.running():
        run.train(600)
        while run.writer._step < 590:
            pass
        run.writer.wanted.append(range(550, 560))
        run.train(3000)
    kept = read_trace(tmp_path / "trace.rank00000.json").kept
    assert kept.keys() >= {*range(550, 560)}
    assert "capture" in {kept[step].why for step in range(550, 560)}
