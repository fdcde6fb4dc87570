"""restarted-job, and what epochs say in a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.document import from_json, to_json
from dsprof.diagnosis.model import Diagnosis
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.reports import render
from dsprof.trace.run import find_run
from dsprof.trace.schema import BECAME, EXIT, INTERRUPTED, NEW_GROUP
from dsprof.trace.selection import Selection
from tests.factories import logs
from tests.factories.epochs import Start, write

CRASH = ((EXIT, ""), (EXIT, "ValueError"))


def judged(folder: Path, *starts: Start, epoch: int | None = None) -> tuple[Finding, Diagnosis]:
    diagnosis = diagnose(find_run([write(folder, *starts)], Selection(epoch=epoch)))
    (found,) = [one for one in diagnosis.findings if one.rule == "restarted-job"]
    return found, diagnosis


def test_the_gap_and_the_repeated_steps_are_lost(tmp_path: Path) -> None:
    # 10 steps of 0.1 s; a checkpoint after the 6th; again from 21 s on: 4 steps of 10 repeat.
    found, diagnosis = judged(tmp_path, Start(0, ends=CRASH), Start(21, taken_before=6))
    assert found.status is Status.FAIL
    assert found.severity is Severity.HIGH
    assert "Epoch 1 crashed (rank 1)." in found.summary
    assert "20.0 s between epochs, 400 ms in 4 repeated steps" in found.summary
    assert found.cause == "Rank 1 ended by ValueError."
    assert found.action == "See how it ended: `dsprof report FOLDER --epoch 1`."
    first, second = diagnosis.epochs.rows
    assert (first.end, first.gap_ns, first.repeated_steps) == ("crashed", 0, 0)
    assert (second.gap_ns, second.repeated_steps) == (20 * 10**9, 4)
    assert (second.first_step, second.last_step, second.steps) == (6, 15, 10)
    assert diagnosis.epochs.lost_share == pytest.approx(20.4 / 22)
    assert (diagnosis.run.epoch, diagnosis.run.epochs, diagnosis.run.steps) == (2, 2, 10)


def test_a_failed_job_that_begins_anew_loads_no_checkpoint_of_its_optimizer(tmp_path: Path) -> None:
    found, _ = judged(tmp_path, Start(0, steps=20, ends=CRASH), Start(21))
    assert "in 10 repeated steps" in found.summary
    assert "Load the last checkpoint" in found.action
    assert "epoch 2 counts its steps from 0" in found.action
    assert "Save checkpoints" not in found.action


def test_a_clock_that_was_set_back_hides_the_time_between(tmp_path: Path) -> None:
    found, diagnosis = judged(tmp_path, Start(3600, ends=CRASH), Start(0, taken_before=6))
    assert "Epoch 1 crashed (rank 1)." in found.summary
    assert "20 % of 2.00 s: time between epochs unknown because the clock was set back" in (
        found.summary
    )
    assert diagnosis.epochs.rows[1].gap_ns is None


def test_epochs_that_ran_at_the_same_time_are_no_restart(tmp_path: Path) -> None:
    """Two processes that both have RANK=0, or two jobs in one folder."""
    found, _ = judged(tmp_path, Start(0), Start(0.3))
    assert (found.status, found.severity) == (Status.FAIL, Severity.HIGH)
    assert found.summary.startswith("Epochs 1 and 2 ran at the same time")
    assert "RANK" in found.fix
    elsewhere = Start(0.3, fields=(("boot_id", "other"),))
    lingering = Start(0.7)  # the first one took 0.3 s to die
    for number, second in enumerate((elsewhere, lingering)):
        found, _ = judged(tmp_path / str(number), Start(0), second)
        assert "at the same time" not in found.summary


def test_figures_are_of_one_epoch(tmp_path: Path) -> None:
    _, last = judged(tmp_path, Start(0, steps=20, ends=CRASH), Start(60, world_size=4))
    first = diagnose(find_run([tmp_path], Selection(epoch=1)))
    assert (last.run.world_size, last.run.steps) == (4, 10)
    assert (first.run.world_size, first.run.steps) == (2, 20)
    assert last.quality.missing_ranks == first.quality.missing_ranks == []
    assert first.epochs.rows[0].is_shown
    # A rank died and none is known to wait: nothing is stuck.
    assert [tile.label for tile in first.tiles if tile.label in ("Suspect", "Stuck for")] == [
        "Suspect"
    ]


def test_the_rank_that_fails_each_time_is_named(tmp_path: Path) -> None:
    starts = [Start(30 * n, ends=CRASH) for n in range(4)]
    found, _ = judged(tmp_path, *starts, Start(120))
    assert found.problem.startswith("4 restarts cost ")
    assert "Rank 1 failed in each of 4 epochs." in found.summary
    assert found.fix == "Find out why rank 1 failed"


def test_one_failure_beyond_those_that_are_named_is_one_epoch(tmp_path: Path) -> None:
    ends = [CRASH, CRASH[::-1]] * 2
    found, _ = judged(tmp_path, *(Start(30 * n, ends=ends[n]) for n in range(4)), Start(120))
    assert "; 1 earlier epoch failed, too." in found.summary


def test_the_host_that_fails_each_time_is_named_where_ranks_move(tmp_path: Path) -> None:
    first = Start(0, ends=CRASH, hosts=("node-a", "node-b"))
    moved = Start(30, ends=CRASH[::-1], hosts=("node-b", "node-c"))
    found, _ = judged(tmp_path, first, moved, Start(60))
    assert "Host node-b failed in each of 2 epochs." in found.summary


def test_steps_without_a_number_in_training_may_or_may_not_be_repeated(tmp_path: Path) -> None:
    found, diagnosis = judged(tmp_path, Start(0, ends=CRASH), Start(21, taken_before=None))
    assert "repeated steps unknown" in found.summary
    assert diagnosis.epochs.rows[1].repeated_steps is None


def test_starts_that_left_no_trace_are_counted(tmp_path: Path) -> None:
    later = Start(60, fields=(("restarts", 3),))
    found, diagnosis = judged(tmp_path, Start(0, ends=CRASH), later)
    assert found.problem.startswith("3 restarts cost ")
    assert "2 starts ended before the first collective" in found.summary
    assert diagnosis.epochs.rows[1].unrecorded == 2


def test_a_first_start_that_slurm_does_not_count_is_no_other(tmp_path: Path) -> None:
    first = Start(0, ends=(None, None), fields=(("restarts", -1),))
    found, _ = judged(tmp_path, first, Start(30))
    assert found.problem.startswith("1 restart cost ")
    assert "before the first collective" not in found.summary


@pytest.mark.parametrize(
    ("ranks", "restarts", "end"), [(4, 0, "nodes joined"), (4, 1, "killed"), (2, 0, "killed")]
)
def test_an_agent_that_lets_nodes_join_counts_no_restart(
    tmp_path: Path, ranks: int, restarts: int, end: str
) -> None:
    first = Start(0, ends=(None, None), fields=(("restarts", 0),))
    then = Start(30, world_size=ranks, fields=(("restarts", restarts),))
    found, diagnosis = judged(tmp_path, first, then)
    assert diagnosis.epochs.rows[0].end == end
    assert (found.title == "The process group was recreated") == (end == "nodes joined")
    # A process that calls os._exit() closes no record either.
    assert ("were killed, or crashed" in found.summary) == (end == "killed")


LOST = (EXIT, "RuntimeError", "connection")


@pytest.mark.parametrize(
    ("ends", "agent", "end"),
    [
        ((None, LOST), "agent a", "nodes joined"),
        ((LOST, (EXIT, "ValueError")), "agent a", "crashed"),
        ((None, None), "agent b", "killed"),
        (((INTERRUPTED, ""),) * 2, "agent a", "interrupted"),
    ],
)
def test_a_failure_before_a_larger_start_is_one(
    tmp_path: Path, ends: tuple[tuple[str, ...] | None, ...], agent: str, end: str
) -> None:
    same: tuple[tuple[str, Any], ...] = (("restarts", 0),)
    keys = [agent, "perhaps rendezvous 1"]
    first = Start(0, ends=ends, fields=(*same, ("job_keys", ["agent a", keys[1]])))
    then = Start(30, world_size=4, fields=(*same, ("job_keys", keys)))
    found, diagnosis = judged(tmp_path, first, then)
    assert diagnosis.epochs.rows[0].end == end
    assert ("no failure is recorded" in found.summary) == (end in ("nodes joined", "interrupted"))


def test_a_long_hang_is_no_stop_of_an_agent(tmp_path: Path) -> None:
    alike = ("restarts", 0)
    for waited_s, end in ((20, "nodes joined"), (80, "stuck")):
        folder = tmp_path / end
        stuck = Start(0, ends=(None, None), fields=(alike,), stuck_s=waited_s)
        _, diagnosis = judged(folder, stuck, Start(200, world_size=4, fields=(alike,)))
        assert diagnosis.epochs.rows[0].end == end


def test_epochs_that_are_not_read_are_counted_once(tmp_path: Path) -> None:
    starts = (Start(60 * one, steps=1, world_size=1, ends=(None,)) for one in range(40))
    assert judged(tmp_path, *starts)[0].problem.startswith("39 restarts cost ")


def test_an_epoch_without_a_step_is_lost_as_a_whole(tmp_path: Path) -> None:
    found, diagnosis = judged(tmp_path, Start(0), Start(11, steps=0, ends=CRASH), Start(31))
    assert [row.gap_ns for row in diagnosis.epochs.rows] == [0, None, 30 * 10**9]
    assert "Epoch 2 crashed" in found.summary


def test_a_short_gap_is_only_mentioned(tmp_path: Path) -> None:
    found, _ = judged(tmp_path, Start(0, steps=300, ends=CRASH), Start(31, taken_before=300))
    assert found.status is Status.INFO


def test_a_process_group_that_is_made_again_is_no_failure(tmp_path: Path) -> None:
    left = ((f"{BECAME} 0 of 2", ""), (f"{BECAME} 1 of 2", ""), (EXIT, ""), (EXIT, ""))
    found, diagnosis = judged(tmp_path, Start(0, world_size=4, ends=left), Start(21))
    assert (found.status, found.title) == (Status.INFO, "The process group was recreated")
    assert "with 4, then 2 ranks" in found.summary
    assert diagnosis.epochs.rows[0].end == "new process group"


def test_a_rank_that_broke_off_before_the_others_went_on_without_it_failed(tmp_path: Path) -> None:
    left = ((f"{BECAME} 0 of 2", ""), (f"{BECAME} 1 of 2", ""), None)
    found, diagnosis = judged(tmp_path, Start(0, world_size=3, ends=left), Start(21))
    assert found.status is Status.FAIL
    assert "Epoch 1 crashed (rank 2)." in found.summary
    assert found.cause == (
        "The record of rank 2 breaks off; other ranks created a new process group."
    )
    assert diagnosis.epochs.rows[0].end == "crashed"


def test_a_training_from_step_0_after_one_that_finished_repeats_nothing(tmp_path: Path) -> None:
    done = ((NEW_GROUP, ""), (NEW_GROUP, ""))
    _, diagnosis = judged(tmp_path, Start(0, ends=done), Start(1), Start(3, taken_before=5))
    assert [row.repeated_steps for row in diagnosis.epochs.rows] == [0, None, 5]
    _, crashed = judged(tmp_path / "crash", Start(0, ends=CRASH), Start(21))
    assert crashed.epochs.rows[1].repeated_steps == 10


def test_ctrl_c_is_no_failure(tmp_path: Path) -> None:
    found, _ = judged(tmp_path, Start(0, ends=((INTERRUPTED, ""),) * 2), Start(21))
    assert found.status is Status.INFO


def test_of_some_ranks_none_is_blamed(tmp_path: Path) -> None:
    write(tmp_path, Start(0, ends=CRASH), Start(21), Start(42, world_size=1))
    run = find_run([tmp_path], Selection(ranks=(range(1, 2),), epoch=2))
    (found,) = [one for one in diagnose(run).findings if one.rule == "restarted-job"]
    assert "Epoch 1 crashed." in found.summary
    assert found.cause == ""
    chosen = Selection(hosts=frozenset({"node-a"}), epoch=1)
    assert len(diagnose(find_run([tmp_path], chosen)).epochs.rows) == 3


def test_a_rank_that_lost_its_connections_is_of_a_crash(tmp_path: Path) -> None:
    write(tmp_path, Start(0, ends=(LOST, (EXIT, "ValueError"))), Start(21))
    diagnosis = diagnose(find_run([tmp_path], Selection(ranks=(range(1),), epoch=1)))
    assert [(row.end, row.ranks) for row in diagnosis.epochs.rows] == [
        ("crashed", []),
        ("exited", []),
    ]
    assert diagnosis.hang is not None
    assert diagnosis.hang.verdicts[0].ranks == ()
    assert diagnosis.findings[0].ranks == ()


def test_one_start_is_no_restart(tmp_path: Path) -> None:
    found, diagnosis = judged(tmp_path, Start(0))
    assert found.status is Status.PASS
    assert diagnosis.epochs.rows == []


@pytest.mark.parametrize("form", ["text", "html"])
def test_reports_say_which_epoch_they_show(tmp_path: Path, form: str) -> None:
    _, diagnosis = judged(tmp_path, Start(0, ends=CRASH), Start(21), epoch=1)
    page = render(from_json(to_json(diagnosis), ""), form, width=160).decode()
    assert "epoch 1 of 2" in page
    assert "--epoch N" in page
    assert "crashed (rank 1)" in page


def test_a_log_of_two_starts_says_what_ended_the_first(tmp_path: Path) -> None:
    first = logs.run(logs.out_of_memory(), ranks=2)
    last = [line.replace(":100", ":200") for line in logs.run(ranks=2)]
    log = tmp_path / "train.log"
    log.write_text("\n".join([*first, *last]) + "\n")
    (found,) = [one for one in diagnose(find_run([log])).findings if one.rule == "restarted-job"]
    assert found.status is Status.FAIL
    assert found.problem == "The job restarted after: device out of memory"
    assert f"head -c {len(chr(10).join(first)) + 1} LOG" in found.action


def test_files_of_other_tools_tell_no_restart(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("\n".join(logs.run(ranks=2)) + "\n")
    findings = diagnose(find_run([tmp_path])).findings
    (found,) = [one for one in findings if one.rule == "restarted-job"]
    assert found.status is Status.NOT_APPLICABLE
