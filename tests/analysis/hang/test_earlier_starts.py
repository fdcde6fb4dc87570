"""Dumps that an earlier start of the job left beside those of the last one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.model import Diagnosis
from dsprof.trace.run import find_run
from tests.factories import flight


def calls(count: int, start_s: int = 0) -> list[dict[str, Any]]:
    """Collectives 1 to `count` of a start, of which the last is in flight."""
    made = [flight.call(seq, done=seq < count) for seq in range(1, count + 1)]
    for one in made:
        one["time_created_ns"] += start_s * 10**9
    return made


def judged(folder: Path, *ranks: list[dict[str, Any]]) -> Diagnosis:
    for rank, entries in enumerate(ranks):
        flight.write(folder, rank, flight.document(entries, {"0": range(len(ranks))}))
    return diagnose(find_run([folder]))


def test_a_dump_of_an_earlier_start_is_no_evidence(tmp_path: Path) -> None:
    new, old = calls(20, start_s=600), calls(50)
    diagnosis = judged(tmp_path, new, new, old, old)
    assert diagnosis.hang is not None
    (verdict,) = diagnosis.hang.verdicts
    assert (verdict.ranks, verdict.waiting) == ((2, 3), (0, 1))
    assert "wrote no dump" in verdict.sentence
    reasons = [one for one in diagnosis.quality.strangers if "an earlier start" in one]
    assert [one.split(":")[0] for one in reasons] == ["the dump of rank 2", "the dump of rank 3"]


def test_a_rank_that_comes_minutes_late_is_of_the_same_start(tmp_path: Path) -> None:
    late = calls(1, start_s=600)
    diagnosis = judged(tmp_path, calls(2), late)
    assert diagnosis.quality.strangers == []


def test_a_recorder_that_has_overwritten_its_begin_tells_no_start(tmp_path: Path) -> None:
    newest = calls(5_000, start_s=600)[4_000:]
    diagnosis = judged(tmp_path, newest, calls(4_000))
    assert diagnosis.quality.strangers == []
