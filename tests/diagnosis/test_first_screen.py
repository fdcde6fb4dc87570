"""What a report begins with: the typical step, headline, tiles, map of steps, quality in a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dsprof.analysis.hang.model import HangReport
from dsprof.analysis.run.series import unsettled
from dsprof.diagnosis.build import diagnose, diagnosis_of
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.run import MOST_SOURCES
from dsprof.diagnosis.tiles import tiles
from dsprof.findings.finding import Severity, Status
from dsprof.reports import content
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.run import find_run
from tests.factories import chakra, device, kineto, logs, snapshot
from tests.factories.hangs import write_killed
from tests.factories.trace import MS, group, rank_trace, span, step, summary, sync, zero_rank
from tests.rules.steps import stepwise


def diagnosed(*traces: RankTrace) -> Diagnosis:
    return diagnosis_of(summary(*traces), {})


def paced(rank: int, lengths_ms: Sequence[float], late_ms: float = 0, world: int = 2) -> RankTrace:
    """A rank that computes, then reduces for 10 ms, or is late and holds the others as long."""
    steps, comm, spans, at = [], [], [], 0.0
    for number, length in enumerate(lengths_ms):
        end = at + length
        issue = end - 10 if rank == world - 1 else end - 10 - late_ms
        steps.append(step(number, at, end))
        spans += [span("forward", at, at + 1, number), span("backward", at + 1, issue, number)]
        comm.append(sync("all_reduce", issue, end - issue, seq=number + 1, step=number))
        at = end
    given = {"groups": {1: group(world)}, "spans": spans, "steps": steps}
    return rank_trace(rank, world, comm=comm, **given)


SETTLING = [900, 800, 570, 400, 300] + [180] * 25


@pytest.mark.parametrize(
    ("times", "count"),
    [
        ([570, 400, 300] + [180] * 25, 3),
        ([570] + [180] * 25, 0),  # an outlier
        ([180, 182, 178] * 9, 0),
        ([400] * 20 + [180] * 8, 0),  # nobody knows which level is the usual one
        ([190, 190] + [180] * 25, 0),
        ([], 0),
    ],
)
def test_first_times_above_the_later_level_are_unsettled(times: list[float], count: int) -> None:
    assert unsettled(np.array(times, np.float64)) == count


def test_no_step_is_a_multiple_of_a_median_of_nothing() -> None:
    """That was a ZeroDivisionError, and no report."""
    steps = [step(number, at := max(number - 24, 0), at + (number >= 24)) for number in range(30)]
    assert diagnosed(rank_trace(0, 1, steps=steps)).step_map.marks == []


def test_a_run_that_settles_is_shown_as_it_is_then() -> None:
    made = diagnosed(paced(0, SETTLING), paced(1, SETTLING))
    typical = made.steps.typical
    assert typical is not None
    assert (typical.settled_from, typical.unsettled_ns) == (5, 570 * MS)
    assert (typical.parts.total_ns, typical.statistic) == (
        180 * MS,
        "median of 25 steps from step 5 on; up to 570 ms before",
    )
    assert typical.mean_ns == 206_071_429  # of 570, 400, 300 and 25 of 180
    assert made.tiles[0].value == "180 ms"
    assert made.tiles[0].detail == f"{typical.statistic}; mean 206 ms"
    made.findings.append(msgspec.structs.replace(made.findings[0], saving_ms_per_step=(3.0, 5.0)))
    assert tiles(made)[0].detail == f"{typical.statistic}; savings refer to the mean, 206 ms"
    assert made.tiles[1].detail.startswith("of the time from step 5 on, mean over ranks")
    assert [(one.kind, one.step) for one in made.step_map.marks if one.kind == "change"] == [
        ("change", 5)
    ]


def test_the_first_screen_and_a_finding_name_the_same_step_of_a_slow_start() -> None:
    """A single short step amid the slow ones was where the run had settled for the first screen."""
    slow = [300, 290, 310, 305, 295, 180, 300, 310, 290, 305, 295, 300]
    lengths = [300, 300, *slow, *[180, 182, 178] * 8]
    made = diagnosed(*(paced(rank, lengths) for rank in range(2)))
    [faster] = [one for one in made.findings if one.rule == "step-time-change"]
    assert made.steps.typical is not None
    assert (faster.steps, made.steps.typical.settled_from) == ((14,), 14)
    marks = [(one.step, one.text) for one in made.step_map.marks if one.kind == "change"]
    assert marks == [(14, faster.problem)]


def test_each_stretch_of_slow_steps_is_marked() -> None:
    lengths = [100] * 60
    lengths[20:30] = lengths[40:50] = [200] * 10
    made = diagnosed(*(paced(rank, lengths) for rank in range(2)))
    [slower] = [one for one in made.findings if one.rule == "step-time-change"]
    marks = [(one.step, one.text) for one in made.step_map.marks if one.kind == "change"]
    assert marks == [(20, slower.problem), (40, slower.problem)]


def test_a_stretch_of_a_late_rank_is_marked() -> None:
    """Its finding is a facet of that of the late rank."""
    slow = stepwise.in_spells(range(20, 40))
    made = diagnosed(stepwise.rank(0, computing=slow), stepwise.rank(1, waiting=slow))
    [slower] = [one for one in made.findings if one.rule == "step-time-change"]
    assert slower.status is Status.NOT_APPLICABLE
    assert [one.step for one in made.step_map.marks if one.kind == "change"] == [20]


def test_a_run_that_gets_faster_in_its_second_half_has_no_step_from_which_it_has_settled() -> None:
    """Its first steps are not a start: which of the two levels is the usual one is unknown."""
    slow = [300, 300, 290, 310, 305, 295, 300, 180, *[300, 310, 290] * 5]
    lengths = [*slow, *[180, 182, 178] * 5]
    made = diagnosed(*(paced(rank, lengths) for rank in range(2)))
    [faster] = [one for one in made.findings if one.rule == "step-time-change"]
    assert made.steps.typical is not None
    assert (faster.steps, made.steps.typical.settled_from) == ((23,), None)


@pytest.mark.parametrize("more_work", [range(30, 50), range(30, 100), range(60, 80)])
def test_a_run_settles_before_a_step_at_which_its_work_grows(more_work: range) -> None:
    """It was said to settle at that step, or never if that is in its second half."""
    made = diagnosed(
        *stepwise.ranks(
            100,
            computing=lambda n: 100 * (n < 6) + 40 * (n in more_work),
            calls=lambda n: 5 * (n in more_work),
        )
    )
    [work] = [one for one in made.findings if one.rule == "step-time-change"]
    assert (work.status, work.steps) == (Status.INFO, (more_work[0],))
    assert made.steps.typical is not None
    assert made.steps.typical.settled_from == 6


def test_a_rank_that_stops_recording_early_neither_settles_a_run_nor_marks_its_steps() -> None:
    """Its steps are longer: without it the mean over the ranks is shorter."""
    steady = [paced(rank, [100.0] * 40) for rank in range(2)]
    longer = paced(2, [500.0] * 9)
    made = diagnosed(*steady, longer)
    assert made.steps.typical is not None
    assert made.steps.typical.settled_from is None
    assert [one.kind for one in made.step_map.marks if one.kind != "straggler"] == []
    total = made.steps.total
    assert (total.fastest_total_ns, total.slowest_total_ns) == (38 * 100 * MS, 38 * 100 * MS)
    settling = diagnosed(*(paced(rank, SETTLING) for rank in range(2)), longer)
    assert settling.steps.typical is not None
    assert settling.steps.typical.settled_from == 5


def test_the_typical_step_is_the_median_split_as_all_measured_ones() -> None:
    lengths = [100, 100, *[100] * 10, *[300] * 2]
    made = diagnosed(*(paced(rank, lengths) for rank in (0, 1)))
    typical = made.steps.typical
    assert typical is not None
    assert (typical.parts.total_ns, typical.statistic) == (100 * MS, "median of 12 measured steps")
    assert typical.mean_ns == round(1600 * MS / 12)
    # 120 ms of the 1,600 of all: a twelfth of 100 would be the share of the shorter ones.
    assert typical.parts.exposed_comm_ns == 7_500_000
    [exposed] = [one for one in made.tiles if one.label == "Exposed communication"]
    assert exposed.detail.startswith("of the measured time, mean over ranks")
    known = typical.parts.exposed_comm_ns + (typical.parts.compute_ns or 0)
    assert known + typical.parts.other_ns == typical.parts.total_ns


def test_rare_steps_are_in_the_parts_where_only_they_communicate() -> None:
    traces = [
        rank_trace(
            rank,
            steps=[
                step(n, 10 * n + 90 * (n > 30), 10 * n + 10 + 90 * (n >= 30)) for n in range(40)
            ],
            comm=[sync("all_reduce", 310, 80, step=30)],
        )
        for rank in range(2)
    ]
    typical = diagnosed(*traces).steps.typical
    assert typical is not None
    assert (typical.long_steps, typical.parts.exposed_comm_ns) == (0, round(800 / 470 * MS))


@pytest.mark.parametrize(
    ("long", "excluded", "compute_ms"),
    [
        ([900], " (parts exclude 1 step of 900 ms)", 90),
        ([900, 600], " (parts exclude 2 steps of up to 900 ms)", 90),
        ([900] * 3, "", 93.7),  # of 40 steps these are part of what the program does
        ([500], "", 90.9),  # five times the median
    ],
)
def test_a_few_far_longer_steps_are_no_part_of_the_typical_one(
    long: list[float], excluded: str, compute_ms: float
) -> None:
    """A step of 13 s made "other 101 ms" of a median step of 142 ms."""
    lengths = [100.0] * (40 - len(long)) + long
    made = diagnosed(*(paced(rank, [100, 100, *lengths]) for rank in (0, 1)))
    typical = made.steps.typical
    assert typical is not None
    assert typical.statistic == f"median of 40 measured steps{excluded}"
    assert (typical.parts.total_ns, typical.long_steps) == (100 * MS, len(long) * bool(excluded))
    assert typical.parts.compute_ns == pytest.approx(compute_ms * MS, rel=0.001)
    share = made.tiles[1].detail
    assert ("long step" in share) == bool(excluded)
    assert ("long ones excluded" in content.mean_note(made.steps)) == bool(excluded)


def test_rounding_makes_no_part_of_the_typical_step_negative() -> None:
    """Of a step of 10,003 ns each half is rounded to 5,002."""
    events, at = [], 1.0
    for number, half in enumerate((5.001, 5.001, 5.001, 5.002)):
        spans = (
            (kineto.step(number, 0, 0), at, 2 * half),
            (kineto.kernel(kineto.GEMM, 0, 0), at, half),
            (kineto.collective(0, 0), at + half, half),
        )
        events += [event | {"ts": ts, "dur": dur} for event, ts, dur in spans]
        at += 2 * half
    made = diagnosed(device.rank(events, world_size=1, baseTimeNanoseconds=10**18))
    assert made.steps.typical is not None
    parts = made.steps.typical.parts
    assert (parts.total_ns, parts.compute_ns, parts.exposed_comm_ns) == (10_003, 5_002, 5_002)
    assert parts.other_ns == 0


def test_the_headline_says_problem_fix_and_saving_of_the_first_finding() -> None:
    made = diagnosed(*(paced(rank, [100] * 30, late_ms=40) for rank in (0, 1)))
    assert (made.headline.rule, made.headline.ranks) == ("late-rank", [1])
    assert made.headline.line == (
        f"{made.headline.problem}. {made.headline.fix}: saves {made.headline.saving}."
    )
    assert made.headline.saving_share == pytest.approx((0.3, 0.5))
    assert made.headline.saving == "30\u201350 ms per step, 30\u201350 %"
    tile = next(one for one in made.tiles if one.label == "Straggler")
    assert tile.value == "rank 1"


def test_without_a_problem_the_headline_says_what_limits_the_step() -> None:
    headline = diagnosed(*(zero_rank(rank) for rank in (0, 1))).headline
    assert headline.problem == "Compute-bound: 85 % compute, 5 % exposed communication"
    assert headline.line == f"No problems found. {headline.problem}."
    assert (headline.rule, headline.fix, headline.severity) == ("", "", Severity.NONE)


def test_a_step_is_bound_by_computation_only_where_the_rule_agrees() -> None:
    made = diagnosed(*(zero_rank(rank, comm_ms=35) for rank in (0, 1)))
    assert made.headline.problem == "Step: 55 % compute, 35 % exposed communication"
    judged = {finding.rule: finding.status for finding in made.findings}
    assert judged["low-compute-share"] is not Status.PASS


def test_a_step_that_is_mostly_in_no_part_says_so() -> None:
    spans = [span("forward", 100 * n, 100 * n + 20, n) for n in range(6)]  # inference
    made = diagnosed(*(zero_rank(rank, spans=spans) for rank in (0, 1)))
    assert made.headline.problem == "Step: 20 % compute, 5 % exposed communication, 75 % other"


def test_a_loop_that_marks_no_forward_names_no_share_of_computation() -> None:
    spans = [span("step", 100 * n, 100 * n + 20, n) for n in range(6)]
    made = diagnosed(*(zero_rank(rank, spans=spans) for rank in (0, 1)))
    assert made.headline.problem == "Step: 5 % exposed communication, 95 % other"


def test_the_tiles_of_a_run_leave_out_what_is_unknown() -> None:
    made = diagnosed(*(zero_rank(rank) for rank in (0, 1)))
    assert made.kind == "training"
    assert {one.label: one.value for one in made.tiles} == {
        "Step": "100 ms",
        "Exposed communication": "5 %",
        "Straggler": "none",
    }


def test_ranks_that_are_late_in_turn_are_no_straggler() -> None:
    def taking_turns(rank: int) -> RankTrace:
        late_ms = [50 * ((n + rank) % 2) for n in range(12)]
        comm = [
            sync("all_reduce", 100 * n + ms, 90 - ms, seq=n + 1, step=n)
            for n, ms in enumerate(late_ms)
        ]
        return rank_trace(
            rank, comm=comm, steps=[step(n, 100 * n, 100 * n + 100) for n in range(12)]
        )

    _, shown = tiled(diagnosed(*map(taking_turns, range(2))))
    assert shown["Straggler"] == ("none", "different ranks arrive last in turn")


def test_a_record_without_steps_says_how_long_ranks_were_blocked() -> None:
    calls = [sync("all_reduce", at, 10) for at in (5, 95)]
    made = diagnosed(*(rank_trace(rank, comm=calls) for rank in (0, 1)))
    blocked = ("20.0 ms", "of the record of 100 ms, mean over ranks")
    assert tiled(made)[1]["Blocked in communication"] == blocked


def test_ranks_are_not_counted_where_no_file_tells_how_many_there_were(tmp_path: Path) -> None:
    graph = chakra.metadata("0.0.4") + chakra.collective("ALL_REDUCE", 100)
    (tmp_path / "job.3.et").write_bytes(graph)
    line = diagnose(find_run([tmp_path])).headline.line
    assert line == "Nothing to judge. Recorded: 1 collective of 1 rank; no step is marked."

    path = kineto.write(tmp_path / "rank3.json", kineto.steps(4, 95, 5), distributedInfo=None)
    line = diagnose(find_run([path])).headline.line
    assert line.endswith("Stragglers unknown: the files of at least 3 ranks are missing.")


def tiled(made: Diagnosis) -> tuple[str, dict[str, tuple[str, str]]]:
    return made.kind, {one.label: (one.value, one.detail) for one in made.tiles}


def test_the_tiles_of_a_hang_name_suspect_operation_and_time(tmp_path: Path) -> None:
    write_killed(tmp_path, 0, 1)
    kind, shown = tiled(diagnose(find_run([tmp_path])))
    assert kind == "hang"
    assert shown["Suspect"][0] == "rank 2"
    assert shown["Operation"][0] == "all_reduce"
    assert shown["Stuck for"] == ("29.6 s", "ranks 0-1 waiting")


def test_operations_that_differ_are_not_called_by_the_name_of_one(tmp_path: Path) -> None:
    write_killed(tmp_path, 0, 1)
    made = diagnose(find_run([tmp_path]))
    assert made.hang is not None
    (verdict,) = made.hang.verdicts
    changed = msgspec.structs.replace(verdict, kind="mismatch", mismatch="op")
    made.hang = HangReport(verdicts=[changed])
    shown = {one.label: one for one in tiles(made)}
    assert shown["Operation"].value == "differs"
    assert "number 4" in shown["Operation"].detail


def test_the_number_of_a_stuck_collective_has_marks_of_thousands(tmp_path: Path) -> None:
    write_killed(tmp_path, 0, 1)
    made = diagnose(find_run([tmp_path]))
    assert made.hang is not None
    [verdict, *_] = made.hang.verdicts
    assert verdict.operation is not None
    late = msgspec.structs.replace(verdict.operation, seq=12_345)
    made.hang = HangReport(verdicts=[msgspec.structs.replace(verdict, operation=late)])
    shown = {tile.label: tile.detail for tile in tiles(made)}
    assert shown["Operation"].startswith("number 12,345 of group ")


def test_the_tiles_of_a_snapshot_are_its_bytes(tmp_path: Path) -> None:
    path = snapshot.write(
        tmp_path / "memory.pickle",
        [snapshot.segment(10, -6), snapshot.segment(-20)],
        [snapshot.event("alloc", 1, 10, line=7)],
    )
    made = diagnose(find_run([path]))
    kind, shown = tiled(made)
    assert kind == "snapshot"
    assert shown["Reserved"][0] == "36.0 MiB"
    assert shown["Stuck"] == ("6.00 MiB", "17 % of reserved; free, but not usable")
    assert shown["Cached"] == ("20.0 MiB", "56 % of reserved; returned on request")
    assert shown["Largest holder at the peak"][0] == "10.0 MiB"
    assert "model.py:7" in shown["Largest holder at the peak"][1]
    made.snapshots[0].peak_holders = {f"/{'deep/' * 20}einops/_backends.py:291 einsum": 1}
    assert tiles(made)[3].detail == "einops/_backends.py:291 einsum"


def test_the_tiles_of_a_log_count_what_failed(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("\n".join(logs.run(logs.out_of_memory())))
    kind, shown = tiled(diagnose(find_run([tmp_path / "train.log"])))
    assert kind == "log"
    assert shown["Problems"] == ("1", "1 critical")
    assert shown["Read"][0] == "1 file"
    made = diagnose(find_run([tmp_path / "train.log"]))
    made.run.source *= MOST_SOURCES  # which does not list more
    assert f"{MOST_SOURCES} files or more" in {tile.value for tile in tiles(made)}


def test_the_tiles_of_a_profile_without_steps_are_shares_of_the_device() -> None:
    events = [
        kineto.kernel(kineto.GEMM, 0, 60),
        kineto.collective(60, 20),
        kineto.kernel("k", 90, 10),
    ]
    kind, shown = tiled(diagnosed(replace(device.rank(events, 0, 1), is_foreign=True)))
    assert kind == "device"
    parts = {
        name: shown[name][0] for name in ("Compute", "Exposed communication", "Copies", "Idle")
    }
    assert [*parts.values()] == ["70 %", "20 %", "0 %", "10 %"]


def test_the_map_names_the_straggler_and_the_slow_step() -> None:
    lengths = [100.0] * 30
    lengths[20] = 400
    shown = diagnosed(*(paced(rank, lengths, late_ms=40) for rank in (0, 1))).step_map
    assert shown.ranks == [(0, 0), (1, 1)]
    assert shown.steps[0] == (2, 2)
    column = shown.steps.index((20, 20))
    assert [row[column] for row in shown.total_ns] == [400 * MS] * 2
    assert [row[column] for row in shown.exposed_ns] == [50 * MS, 10 * MS]
    stragglers = [one for one in shown.marks if one.kind == "straggler"]
    # 40 ms of the slow step are 10 %; of each other one 40 %.
    assert [one.step for one in stragglers] == list(range(2, 30))
    assert stragglers[0].text == "The others wait 40.0 ms for rank 1 in step 2"
    assert {(one.rank, one.row) for one in stragglers} == {(1, 1)}
    (slow,) = (one for one in shown.marks if one.kind == "outlier")
    assert (slow.step, slow.column, slow.rank) == (20, column, None)


def test_the_map_marks_only_long_waits_where_no_rank_is_a_straggler() -> None:
    made = diagnosed(*(paced(rank, [100.0] * 4 + [20.0] * 2, late_ms=8) for rank in (0, 1)))
    assert not [
        one for one in made.findings if (one.rule, one.status.value) == ("late-rank", "fail")
    ]
    # 8 ms are 8 % of most steps, and 40 % of the last two.
    assert [one.step for one in made.step_map.marks if one.kind == "straggler"] == [4, 5]


def test_the_map_of_many_ranks_and_steps_keeps_the_rank_that_is_busy() -> None:
    world, late = 130, 129
    traces = [paced(rank, [20.0] * 250, late_ms=5, world=world) for rank in (0, 1, 2, late)]
    shown = diagnosed(*traces).step_map
    assert (len(shown.ranks), len(shown.steps)) == (4, 83)
    assert shown.steps[0] == (2, 4)
    assert shown.exposed_ns[-1][0] == 10 * MS
    assert " per step for rank 129 in steps 2 to 4" in shown.marks[0].text


def test_a_block_of_ranks_shows_the_one_that_waits_least() -> None:
    world = 65
    traces = [paced(rank, [20.0] * 10, late_ms=5, world=world) for rank in range(world)]
    shown = diagnosed(*traces).step_map
    assert shown.ranks[-1] == (64, 64)
    assert shown.ranks[0] == (0, 1)
    assert len(shown.ranks) == 33
    assert {row[0] for row in shown.exposed_ns[:-1]} == {15 * MS}
    assert shown.exposed_ns[-1][0] == 10 * MS


def test_an_empty_record_has_an_empty_map_and_no_step_tile() -> None:
    made = diagnosed(rank_trace(0), rank_trace(1))
    assert made.step_map.ranks == []
    assert made.steps.typical is None
    assert "Step" not in {one.label for one in made.tiles}


def test_quality_is_a_line_and_says_what_it_limits() -> None:
    whole = diagnosed(*(zero_rank(rank) for rank in (0, 1))).quality
    assert whole.line.startswith("2 of 2 ranks, complete")
    assert whole.limits == []
    cut = diagnosed(*(zero_rank(rank, broken_lines=1 - rank) for rank in (0, 1))).quality
    assert cut.line.startswith("2 of 2 ranks, 1 unreadable line;")
    partial = diagnosed(zero_rank(0)).quality
    assert partial.line.startswith("1 of 2 ranks")
    assert partial.limits == ["The traces of 1 of 2 ranks are missing"]
