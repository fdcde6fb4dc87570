"""A program that closes descriptors of the trace: no other file is written, cut or closed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsprof.trace.writing.disk import OwnFile, create_trace
from tests.trace.written_run import Run, collective, step_end

CHECKPOINT = b"weights\n" * 10_000


@pytest.fixture
def taken(tmp_path: Path) -> Iterator[Callable[[OwnFile], Path]]:
    """Give the descriptor of a trace to a checkpoint, as the next `open` of a program does."""
    checkpoint, descriptors = tmp_path / "checkpoint.pt", list[int]()
    checkpoint.write_bytes(CHECKPOINT)

    def take(file: OwnFile) -> Path:
        descriptors.append(file.fileno())
        opened = os.open(checkpoint, os.O_RDWR)
        os.dup2(opened, descriptors[0])
        os.close(opened)
        return checkpoint

    yield take
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.parametrize(
    "act",
    [
        lambda file: file.append(b"line\n"),
        lambda file: file.check_room(),
        lambda file: file.give_up_lines(),
        lambda file: file.read(100, 0),
    ],
)
def test_the_next_file_of_the_program_stays_as_it_is(
    tmp_path: Path, taken: Callable[[OwnFile], Path], act: Callable[[OwnFile], object]
) -> None:
    file, path = create_trace(tmp_path, 0, 0, b"[\n" * 50)
    checkpoint = taken(file)
    with pytest.raises(OSError, match="the program closed the file"):
        act(file)
    file.close()
    assert checkpoint.read_bytes() == CHECKPOINT
    assert path.read_bytes() == b"[\n" * 50


def test_a_recording_ends_without_a_traceback(
    tmp_path: Path, taken: Callable[[OwnFile], Path]
) -> None:
    run = Run(tmp_path)
    warnings: list[str] = []
    run.writer._source.warn = warnings.append
    run.writer._open()
    assert run.writer._file is not None
    checkpoint = taken(run.writer._file)
    run.records.extend([collective(0, 0), step_end(0)])
    run.writer._take_turn()
    run.writer._close_files()
    assert warnings == [
        f"rank 0 cannot write to {tmp_path}: the program closed the file. "
        "Steps are lost until it can"
    ]
    assert checkpoint.read_bytes() == CHECKPOINT


def test_a_closed_file_is_closed_once(tmp_path: Path) -> None:
    file, _ = create_trace(tmp_path, 0, 0, b"[\n")
    os.close(file.fileno())
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.append(b"line\n")


def test_a_moved_folder_is_written_on(tmp_path: Path) -> None:
    folder = tmp_path / "before"
    folder.mkdir()
    file, path = create_trace(folder, 0, 0, b"[\n")
    moved = folder.rename(tmp_path / "after")
    file.append(b"line\n")
    file.close()
    assert (moved / path.name).read_bytes() == b"[\nline\n"
