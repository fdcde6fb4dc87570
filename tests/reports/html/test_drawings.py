"""Drawings: what is where, what is said of it, and that nothing is made up."""

from __future__ import annotations

import itertools
import re

import msgspec
import pytest

from dsprof.diagnosis.parts.communication import BucketFill, ExpectedCurve, FillMoment
from dsprof.diagnosis.parts.logs import LogMarkRow
from dsprof.diagnosis.parts.memory import SnapshotRow
from dsprof.diagnosis.parts.steps import StepMap, StepMark, StepParts
from dsprof.diagnosis.parts.timelines import Bar, Timeline
from dsprof.diagnosis.parts.topology import GroupLayout, Topology
from dsprof.reports import tables
from dsprof.reports.content import step_bars, typical_step
from dsprof.reports.html import drawing, memory_drawing
from dsprof.reports.html.bandwidth_drawing import bandwidth_drawing
from dsprof.reports.html.bucket_drawing import bucket_drawing
from dsprof.reports.html.heat_map import LEVELS, heat_map
from dsprof.reports.html.log_drawing import log_drawing
from dsprof.reports.html.memory_drawing import size_ticks
from dsprof.reports.html.snapshot_drawing import snapshot_drawing
from dsprof.reports.html.step_drawings import step_bar, step_columns, step_labels
from dsprof.reports.html.templates import stylesheet
from dsprof.reports.html.timeline_drawing import timeline_drawing
from dsprof.reports.html.topology_drawing import topology_drawing
from dsprof.reports.html.view import View
from tests.factories import diagnosis as factory

MS = 1_000_000
RECTANGLE = re.compile(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)H")


def rectangles(made: drawing.Drawing, colour: str) -> list[tuple[float, ...]]:
    """Left, top, width and height of each rectangle of a colour."""
    paths = "".join(shape.path for shape in made.shapes if shape.colour == colour)
    return [tuple(map(float, found)) for found in RECTANGLE.findall(paths)]


@pytest.mark.parametrize(
    ("most", "expected"),
    [(9.0, [5.0]), (10.0, [5.0, 10.0]), (0.3, [0.1, 0.2, 0.3]), (0, []), (float("inf"), [])],
)
def test_ticks_are_round_and_within(most: float, expected: list[float]) -> None:
    assert list(drawing.ticks(most)) == pytest.approx(expected)


def test_ticks_of_sizes_are_round_in_binary_units() -> None:
    assert list(size_ticks(700 << 20)) == [256 << 20, 512 << 20]


def test_the_parts_of_a_step_fill_its_bar_side_by_side() -> None:
    made = step_bar(typical_step(factory.diagnosis(8, 50).steps))
    left = 0.0
    for shape in made.shapes:
        ((begun, _, width, _),) = rectangles(made, shape.colour)
        assert begun == pytest.approx(left, abs=0.1)
        left += width
    assert left == pytest.approx(drawing.WIDTH, abs=0.5)
    assert [key.colour for key in made.keys] == ["compute", "exposed_comm", "idle", "other"]
    assert made.sentence.startswith("Step of 4")


def test_columns_are_as_high_as_steps_are_long_and_leave_out_what_is_unknown() -> None:
    made = step_columns(step_bars([_step(0, idle_ns=None), _step(1, idle_ns=6 * MS)], 10))
    first, second = rectangles(made, "compute")
    assert first[3] == second[3]
    ((left, _, _, height),) = rectangles(made, "idle")
    assert left == second[0]
    assert height == pytest.approx(second[3] * 6 / 5, abs=0.1)
    assert not rectangles(made, "copies")
    assert {key.colour for key in made.keys} == {"compute", "exposed_comm", "idle"}
    assert made.sentence == "Time of 2 steps, mean over ranks; the longest is step 1 with 12.0 ms."


def test_below_steps_is_the_time_of_day_where_it_is_known() -> None:
    steps = [_step(number, idle_ns=None) for number in (0, 1)]
    assert step_columns(step_bars(steps, 10)).lanes[-1].text == "step"
    dated = [msgspec.structs.replace(one, began_s=86_399 + (one.step or 0)) for one in steps]
    made = step_columns(step_bars(dated, 10))
    assert made.lanes[-1].text == "UTC"
    assert [word.text for word in made.words[-2:]] == ["01-01 23:59:59", "01-02 00:00:00"]


def cells(busy_ms: list[list[int]], marks: list[StepMark] | None = None) -> StepMap:
    """Ranks from 0 and steps from 7 that never wait; -1 is no data."""
    ns = [[value * MS if value >= 0 else -1 for value in row] for row in busy_ms]
    return StepMap(
        ranks=[(rank, rank) for rank in range(len(ns))],
        steps=[(7 + step, 7 + step) for step in range(len(ns[0]))],
        total_ns=ns,
        exposed_ns=[[-1] * len(row) for row in ns],
        compute_ns=[[-1] * len(row) for row in ns],
        marks=marks or [],
    )


def test_a_slow_rank_is_a_dark_row_and_marks_say_what_stands_out() -> None:
    late = [
        StepMark(kind="straggler", step=7 + c, column=c, rank=1, row=1, text="late") for c in (0, 2)
    ]
    slow = StepMark(kind="outlier", step=9, column=2, rank=None, row=None, text="Step 9 is slow")
    change = StepMark(kind="change", step=8, column=1, rank=None, row=None, text="It settles")
    found = cells([[100, 101, 99], [160, 162, 161], [-1, 100, 101]], [*late, slow, change])
    made = heat_map(found)
    assert made is not None
    dark = rectangles(made, f"heat-{LEVELS}")
    assert {top for _, top, _, _ in dark} == {26.0}
    assert len(dark) == 3
    assert len(rectangles(made, "heat-0")) == 5  # of six usual cells one is unknown
    assert [lane.text for lane in made.lanes if lane.kind == "strong"] == ["rank 1"]
    marks = [(shape.kind, shape.title) for shape in made.shapes if shape.colour == "ink"]
    assert marks == [
        ("outline", "late"), ("outline", "late"),
        ("area", "Step 9 is slow"), ("line", "It settles"),
    ]  # fmt: skip
    assert "Most often late: rank 1, in 2 columns. Step 9 is slow. It settles." in made.sentence
    assert [key.kind for key in made.keys] == ["area", "area", "outline", "triangle", "upright"]


@pytest.mark.parametrize(("marked", "shown"), [(1, 1), (2, 0)])
def test_unusual_steps_are_marked_only_where_they_stand_out(marked: int, shown: int) -> None:
    marks = [
        StepMark(kind="outlier", step=7 + c, column=c, rank=None, row=None, text="slow")
        for c in range(marked)
    ]
    made = heat_map(cells([[100, 101, 99], [100, 102, 101]], marks))
    assert made is not None
    assert sum(shape.title == "slow" for shape in made.shapes) == shown
    assert ("unusual step" in {key.label for key in made.keys}) is bool(shown)


def test_stragglers_that_are_neighbours_have_one_frame() -> None:
    late = [
        StepMark(kind="straggler", step=7 + c, column=c, rank=r, row=r, text=f"late in {7 + c}")
        for c, r in ((0, 1), (1, 1), (2, 0), (3, 1), (4, 1))
    ]
    made = heat_map(cells([[100] * 5, [160] * 5], late))
    assert made is not None
    assert [shape.title for shape in made.shapes if shape.kind == "outline"] == [
        "late in 9",
        "The others wait for rank 1 in steps 7 to 8",
        "The others wait for rank 1 in steps 10 to 11",
    ]
    frames = [(left, width) for left, _, width, _ in rectangles(made, "ink")]
    assert frames == [(400, 188), (0, 388), (600, 388)]


def test_noise_is_not_dark() -> None:
    made = heat_map(cells([[100, 103], [101, 102]]))
    assert made is not None
    assert {shape.colour for shape in made.shapes} == {"heat-0"}
    assert [key.label for key in made.keys] == ["usual, 101 ms"]  # no mark, no darker cell


def test_many_ranks_are_thin_rows_of_which_some_are_named() -> None:
    made = heat_map(cells([[100, 300 if rank == 60 else 100] for rank in range(64)]))
    assert made is not None
    assert made.height_px < 260
    assert 10 < len(made.lanes) < 20
    assert len(rectangles(made, f"heat-{LEVELS}")) == 1


def test_the_name_of_a_late_rank_takes_the_place_of_names_beside_it() -> None:
    late = [
        StepMark(kind="straggler", step=7 + c, column=c, rank=17, row=17, text="late")
        for c in (0, 1)
    ]
    made = heat_map(cells([[100, 100 + 60 * (rank == 17)] for rank in range(64)], late))
    assert made is not None
    heights = [lane.y for lane in made.lanes]
    assert min(b - a for a, b in itertools.pairwise(heights)) > 13.9
    assert [lane.text for lane in made.lanes if lane.kind == "strong"] == ["rank 17"]
    ((_, top, _, height),) = rectangles(made, "ink")
    assert top < 12 + 17 * 3.5 < 12 + 18 * 3.5 < top + height  # beside the cells, not on them


def test_a_rank_that_is_late_in_a_few_steps_is_named_among_many() -> None:
    late = StepMark(kind="straggler", step=7, column=0, rank=17, row=17, text="late")
    made = heat_map(cells([[100] * 4 for _ in range(64)], [late]))
    assert made is not None
    assert "rank 17" in [lane.text for lane in made.lanes if not lane.kind]


def test_labels_of_steps_never_touch_on_a_phone() -> None:
    for first in (0, 100, 10_000, 1_000_000):
        labels = [f"{first + n}" for n in range(61)]
        start, *others = step_labels(labels, 0)
        ends_px = start.x + 7 * len(start.text)
        for word in others:
            middle_px, half_px = word.x / 100 * 255, 3.5 * len(word.text)
            assert ends_px < middle_px - half_px
            ends_px = middle_px + half_px


def test_rows_of_several_ranks_claim_none_of_those_between() -> None:
    late = StepMark(kind="straggler", step=7, column=0, rank=5, row=1, text="late")
    found = cells([[100, 101], [100, 102]], [late])
    found.ranks = [(0, 3), (4, 9)]
    made = heat_map(found)
    assert made is not None
    assert made.sentence.startswith(
        "Time outside communication waits in 2 rows of up to 6 ranks in steps 7 to 8."
    )
    assert made.keys[-1].label == "the others waited long for a rank of this row"


def test_ranks_that_were_not_read_are_not_counted() -> None:
    found = cells([[100, 101], [100, 102]])
    found.ranks = [(0, 0), (7, 7)]
    made = heat_map(found)
    assert made is not None
    assert made.sentence.startswith("Time outside communication waits of 2 ranks in steps 7 to 8.")


def test_one_step_or_nothing_known_is_no_heat_map() -> None:
    assert heat_map(cells([[1], [2]])) is None
    assert heat_map(cells([[-1, -1], [-1, -1]])) is None
    assert heat_map(StepMap()) is None


def test_a_timeline_frames_the_ranks_that_a_finding_names() -> None:
    bars = [
        Bar(rank=rank, lane=lane, kind="forward", start_ns=0, end_ns=MS)
        for rank in (0, 1)
        for lane in ("phase", "stream 7")
    ]
    step = Timeline(step=3, why="worst", duration_ns=2 * MS, bars=bars)
    made = timeline_drawing(step, {1})
    assert [lane.text for lane in made.lanes] == [
        "rank 0 phases", "stream 7", "rank 1 phases", "stream 7",
    ]  # fmt: skip
    (frame,) = [shape for shape in made.shapes if shape.kind == "outline"]
    assert frame.title == "rank 1: named by a finding"
    assert all(width == drawing.WIDTH / 2 for _, _, width, _ in rectangles(made, "phase-forward"))


def test_memory_without_samples_is_no_drawing() -> None:
    bare = [msgspec.structs.replace(rank, steps=[]) for rank in factory.diagnosis().memory]
    assert memory_drawing.memory_drawing(bare) is None


def test_memory_of_many_ranks_draws_some_in_a_colour_for_each_kind() -> None:
    ranks = [
        msgspec.structs.replace(rank, allocated_bytes=rank.rss_bytes)
        for rank in factory.diagnosis(20, 3).memory
    ]
    made = memory_drawing.memory_drawing(ranks)
    assert made is not None
    lines = [shape for shape in made.shapes if shape.title]
    assert len(lines) == 3 * memory_drawing.MAX_RANKS
    assert len({shape.colour for shape in lines}) == len(made.keys) == 3


def test_memory_has_a_colour_for_each_kind_that_can_be_seen_and_gaps_where_it_is_unknown() -> None:
    (rank,) = (
        msgspec.structs.replace(
            rank,
            steps=[0, 1, 2],
            rss_bytes=[],
            allocated_bytes=[700, 800, 900],
            reserved_bytes=[1000, 1000, 1000],
            stuck_bytes=[100, 200, 300],
            gathered_bytes=[None, 400, 500],
            reducing_bytes=[9, 9, 9],
        )
        for rank in factory.diagnosis(1, 3).memory
    )
    made = memory_drawing.memory_drawing([rank])
    assert made is not None
    lines = {shape.title: shape for shape in made.shapes if shape.title}
    assert list(lines) == [
        "rank 0: allocated on the device, at most 900 B",
        "rank 0: reserved on the device, at most 1,000 B",
        "rank 0: stuck in the allocator, at most 300 B",
        "rank 0: gathered parameters, peak of the step, at most 500 B",
    ]
    assert len({shape.colour for shape in lines.values()}) == len(made.keys) == 4
    assert [*lines.values()][3].path.startswith("M500 ")  # step 0 is not known
    table = tables.memory.memory([rank])
    assert [c.label for c in table.columns][7:] == [
        "Stuck",
        "Peak gathered",
        "Peak buckets in flight",
    ]
    assert table.rows[0][7:] == (300, 500, 9)


def test_bandwidth_is_a_point_for_each_size_and_a_dashed_curve_where_it_is_expected() -> None:
    small, large = reversed(factory.transfers(8))
    rows = [small, large, msgspec.structs.replace(large, op="all_gather", busbw=3e9)]
    curve = ExpectedCurve(
        op="all_reduce", group="world", group_size=8, hosts=1, source="the baseline",
        bytes=[12, 1 << 20, 28_731_392], busbw=[40e3, 1e9, 2.9e9],
    )  # fmt: skip
    elsewhere = msgspec.structs.replace(curve, op="broadcast")
    made = bandwidth_drawing(rows, [curve, elsewhere])
    assert made is not None
    points = [word for word in made.words if word.text == "\N{BLACK CIRCLE}"]
    assert len(points) == 3
    assert {word.colour for word in points} == {key.colour for key in made.keys[:2]}
    by_speed = sorted(points, key=lambda word: word.y)  # the fastest is the highest
    assert by_speed[0].x == by_speed[1].x > by_speed[2].x
    assert [key.label for key in made.keys] == [
        "all_gather (world, 8 ranks)", "all_reduce (world, 8 ranks)", "expected: the baseline",
    ]  # fmt: skip
    (dashed,) = [shape for shape in made.shapes if shape.kind == "dashed"]
    assert dashed.colour == made.keys[1].colour
    assert dashed.path.count("L") == 2
    assert bandwidth_drawing(rows[:2]) is None


def test_the_memory_of_each_device_is_a_bar_on_one_scale() -> None:
    made = snapshot_drawing([snapshot(0, 8, 2, 6), snapshot(1, 4, 1, 3)])
    assert made is not None
    assert [width for _, _, width, _ in rectangles(made, "compute")] == [500, 250]
    assert [left for left, *_ in rectangles(made, "other")] == [625, 312.5]
    assert made.sentence == (
        "Rank 0 reserved 16.0 GiB: 8.00 GiB in use, 2.00 GiB stuck, 6.00 GiB cached."
    )
    assert snapshot_drawing([]) is None


def test_a_group_is_a_run_of_neighbours_and_numbers_are_shown_where_they_have_room() -> None:
    def layout(name: str, group_of: list[int]) -> GroupLayout:
        return GroupLayout(
            name=name,
            size=2,
            groups=max(group_of) + 1,
            hosts=1,
            group_of=group_of,
            bytes_per_step=None,
            exposed_ns=None,
        )

    found = Topology(
        ranks=[0, 1, 2, 3],
        hosts=["a", "a", "node-of-a-long-name-without-any-room", ""],
        layouts=[layout("tensor parallel", [0, 0, 1, 1]), layout("odd", [-1, 0, -1, 0])],
    )
    made = topology_drawing(found)
    assert made is not None
    assert [lane.text for lane in made.lanes] == [
        "host", "tensor parallel \N{MULTIPLICATION SIGN} 2", "odd", "rank",
    ]  # fmt: skip
    assert [width for *_, width, _ in rectangles(made, "other")] == [497, 247]
    assert [left for left, *_ in rectangles(made, "series-1")] == [0, 250, 750]
    assert [word.text for word in made.words] == ["a", "0", "1", "0", "0", "0", "1", "2", "3"]
    assert made.sentence == (
        "4 ranks on 2 hosts. tensor parallel: 2 groups of up to 2 ranks, odd: 1 group of up to 2 "
        "ranks."
    )
    assert topology_drawing(Topology()) is None


def test_a_group_beyond_the_number_of_groups_is_drawn() -> None:
    found = factory.diagnosis().topology
    found.layouts[1].groups = 0
    assert topology_drawing(found) is not None


def test_a_bucket_is_as_high_as_it_is_full_and_has_the_colour_of_its_cause() -> None:
    def reduced(start: int, elements: int, cause: str) -> FillMoment:
        return FillMoment(
            since_ns=(start - 10) * MS,
            start_ns=start * MS,
            end_ns=(start + 1) * MS,
            elements=elements,
            capacity=100,
            bytes=4 * elements,
            cause=cause,
        )

    flushes = [reduced(20, 90, "full"), reduced(40, 120, "full"), reduced(60, 30, "by hand")]
    made = bucket_drawing(BucketFill(rank=3, step=7, duration_ns=100 * MS, flushes=flushes))
    assert made is not None
    grid, *shapes = made.shapes
    assert [shape.path for shape in shapes] == [
        "M100.0 98L200.0 30.5V98z", "M300.0 98L400.0 8.0V98z", "M500.0 98L600.0 75.5V98z",
    ]  # fmt: skip
    assert grid.path == "M0 23H1000M0 98H1000"  # one holds more than its capacity
    assert [key.label for key in made.keys] == ["reduced when full", "reduced for another reason"]
    assert shapes[0].title == "full: 90 % of 100 elements, 360 B"
    assert bucket_drawing(BucketFill(rank=0, step=0, duration_ns=1, flushes=flushes[:2])) is None


def test_the_first_error_of_a_log_is_framed_before_any_warning() -> None:
    def mark(rank: int, place: float, *, is_error: bool) -> LogMarkRow:
        return LogMarkRow(rank=rank, place=place, is_error=is_error, text=f"of rank {rank}")

    marks = [mark(1, 0.1, is_error=False), mark(5, 0.4, is_error=True), mark(1, 1, is_error=True)]
    made = log_drawing(marks)
    assert made is not None
    (frame,) = [shape for shape in made.shapes if shape.kind == "outline"]
    assert frame.title == "of rank 5"
    assert [left for left, *_ in rectangles(made, "exposed_comm")] == [398, 995]
    assert [lane.text for lane in made.lanes if lane.kind == "strong"] == ["rank 5"]
    assert made.keys[-1].label == "first error: rank 5, of rank 5"
    assert log_drawing(marks[1:2]) is None


def test_an_error_of_a_log_that_no_rank_states_has_a_row_of_its_own() -> None:
    known = LogMarkRow(rank=3, place=0.5, is_error=True, text="later")
    made = log_drawing([LogMarkRow(rank=None, place=0.1, is_error=True, text="early"), known])
    assert made is not None
    assert [lane.text for lane in made.lanes] == ["rank 3", "an unknown rank"]
    assert made.keys[-1].label == "first error: an unknown rank, early"


def test_of_many_ranks_of_a_log_those_that_fail_first_are_drawn() -> None:
    marks = [
        LogMarkRow(rank=rank, place=1 - rank / 100, is_error=True, text="") for rank in range(50)
    ]
    made = log_drawing(marks)
    assert made is not None
    assert [lane.text for lane in made.lanes] == [f"rank {rank}" for rank in range(26, 50)]


def snapshot(rank: int, active: int, stuck: int, cached: int) -> SnapshotRow:
    sizes = {
        "active": active,
        "stuck": stuck,
        "cached": cached,
        "reserved": active + stuck + cached,
    }
    given = {f"{name}_bytes": gib << 30 for name, gib in sizes.items()}
    none = dict.fromkeys(("largest_free_bytes", "expandable_bytes", "private_bytes"), 0)
    return SnapshotRow(rank=rank, device=0, segments=1, partly_used=1, **given, **none)


def test_every_colour_is_in_the_style_sheet() -> None:
    view = View(factory.diagnosis(2, 8))
    made = [view.step_bar, view.step_columns, view.heat_map, view.memory]
    made += [one.drawing for one in view.timelines]
    names = {s.colour for d in made if d for s in d.shapes} | {
        key.colour for d in made if d for key in d.keys
    }
    assert [name for name in names if f"--{name}:" not in stylesheet()] == []


def _step(number: int, idle_ns: int | None) -> StepParts:
    return StepParts(
        step=number,
        compute_ns=5 * MS,
        exposed_comm_ns=MS,
        copies_ns=None,
        idle_ns=idle_ns,
        other_ns=0,
        total_ns=6 * MS + (idle_ns or 0),
        slowest_total_ns=13 * MS,
    )


def test_steps_and_the_map_below_them_have_one_axis() -> None:
    made = factory.diagnosis(2, 9)
    made.step_map = cells([[100, 101], [100, 300]])
    view = View(made)
    assert view.step_columns is not None
    assert view.heat_map is not None
    places = [
        [(word.x, word.text) for word in one.words] for one in (view.step_columns, view.heat_map)
    ]
    assert places[0] == places[1]
    assert places[0][0] == (0, "7")
    for drawn in (view.step_columns, view.heat_map):
        assert drawn.lanes[-1].text == "step"
