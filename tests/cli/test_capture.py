"""`dsprof capture`: a job that cannot answer is not waited for."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest

from dsprof.__main__ import main
from tests.factories.month import FastMotion
from tests.factories.trace import header
from tests.factories.trace_files import write_trace


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder in which one rank has recorded, and ended."""
    rank = FastMotion(tmp_path, 10**6, world_size=1)
    with rank.running():
        rank.train(20)
    return tmp_path


def refusal(job: Path, capsys: pytest.CaptureFixture[str]) -> str:
    with patch("dsprof.cli.capture.time.sleep") as slept:
        assert main(["capture", str(job)]) == 2
    slept.assert_not_called()
    assert not (job / ".capture.json").exists()
    return capsys.readouterr().err


def test_a_job_that_has_ended_is_named_at_once(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    see = f"to see what it kept, run: dsprof report {job}"
    assert refusal(job, capsys) == f"dsprof: {job}: the job has ended; {see}\n"


def test_a_job_that_shows_no_life_is_named_at_once(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = job / "trace.rank00000.json"
    book.write_bytes(book.read_bytes().removesuffix(b"]\n"))
    for path in job.iterdir():
        os.utime(path, (0, path.stat().st_mtime - 60))
    assert ": no rank has written for 6" in refusal(job, capsys)


def test_a_job_of_another_mode_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_trace(tmp_path / "trace.rank00000.json", header(0, 1), steps=3)
    assert "recorded without mode: always" in refusal(tmp_path, capsys)
