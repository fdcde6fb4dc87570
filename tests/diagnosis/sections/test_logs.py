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


def test_what_no_rank_states_is_of_none(tmp_path: Path) -> None:
    when = "2026-01-01T10:00:00"
    ended = f"slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT {when} DUE TO TIME LIMIT ***"
    one = tmp_path / "train.log"
    one.write_text("\n".join([*logs.run(), logs.out_of_memory(), ended, ""]))
    made = diagnose(find_run([one]))
    assert [(mark.rank, mark.text) for mark in made.log_marks] == [(None, "device out of memory")]
    (limit,) = [fact for fact in made.logged if fact.value == "time limit"]
    assert limit.ranks == []


def test_a_file_that_names_no_host_is_of_no_further_host(tmp_path: Path) -> None:
    (tmp_path / "nodes.log").write_text("\n".join([*logs.run(), ""]))
    (tmp_path / "rank4.log").write_text("\n".join([logs.out_of_memory(), ""]))
    assert diagnose(find_run([tmp_path])).run.hosts == ["node0", "node1"]
