"""Ranks that are killed when they have left their process group ended in good order."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.model import Diagnosis
from dsprof.findings.finding import Finding, Status
from dsprof.trace.run import find_run
from dsprof.trace.schema import FILE_PATTERN
from tests.dist.launch import PROGRAMS, launch

pytestmark = [pytest.mark.dist]


def left(folder: Path, how: str, **settings: str) -> None:
    env = {"DSPROF": "1", "DSPROF_OUT": str(folder)} | settings
    launch(PROGRAMS / "leaves.py", args=[how], env=env, imported="torch")


def ending(folder: Path) -> tuple[Diagnosis, Finding]:
    found = diagnose(find_run([folder]))
    return found, next(one for one in found.findings if one.rule == "data-quality")


@pytest.mark.parametrize("mode", ["", "always"])
def test_ranks_leave_and_are_killed(tmp_path: Path, mode: str) -> None:
    left(tmp_path, "written", **({"DSPROF_MODE": mode} if mode else {}))
    found, finding = ending(tmp_path)
    assert (finding.status, finding.ranks) == (Status.INFO, (0, 1))
    assert finding.summary.endswith("their records: nothing before that is missing.")
    assert (found.quality.unclean_ranks, found.quality.left_ranks) == ([], [0, 1])
    assert found.hang is None


def test_what_was_not_written_by_then_is_missing(tmp_path: Path) -> None:
    left(tmp_path, "at once")
    for trace in tmp_path.glob(FILE_PATTERN):
        lines = trace.read_bytes().splitlines(keepends=True)
        first = next(n for n, line in enumerate(lines) if line.startswith(b'{"cat":"comm"'))
        trace.write_bytes(b"".join(lines[: first + 1]))
    _, finding = ending(tmp_path)
    assert (finding.status, finding.ranks) == (Status.INFO, (0, 1))
    assert "their records: up to the last " in finding.summary


def test_ranks_that_are_killed_in_their_group_break_off(tmp_path: Path) -> None:
    left(tmp_path, "stays")
    _, finding = ending(tmp_path)
    assert finding.status is Status.FAIL
    assert finding.title == "Records break off"
