from __future__ import annotations

from pathlib import Path

from dsprof.diagnosis.build import diagnose
from dsprof.trace.run import find_run
from tests.factories import logs


def test_marks_are_in_the_order_of_the_only_log(tmp_path: Path) -> None:
    late, early = logs.said("late", 0, level="WARN"), logs.said("early", 3, level="WARN")
    one = tmp_path / "train.log"
    one.write_text("\n".join([*logs.run(), early, late, ""]))
    found = diagnose(find_run([one])).log_marks
    assert [(mark.rank, mark.text, mark.is_error) for mark in found] == [
        (3, "early", False), (0, "late", False),
    ]  # fmt: skip
    assert 0 < found[0].place < found[1].place < 1


def test_of_several_logs_the_order_is_not_known(tmp_path: Path) -> None:
    for rank in (0, 1):
        lines = [logs.said("late", rank, level="WARN"), logs.ready(rank, 2), ""]
        (tmp_path / f"rank{rank}.log").write_text("\n".join(lines))
    made = diagnose(find_run([tmp_path]))
    assert made.run.ranks == [0, 1]
    assert made.log_marks == []
