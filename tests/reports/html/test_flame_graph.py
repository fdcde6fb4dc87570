"""Flame graphs: widths are shares, nothing is lost, and many frames stay few."""

from __future__ import annotations

import pytest

from dsprof.diagnosis.parts.communication import CallSiteRow
from dsprof.diagnosis.parts.memory import StackRow
from dsprof.reports.html.flame_graph import (
    MOST_DEPTH,
    MOST_FRAMES,
    Box,
    FlameGraph,
    held_memory,
    waiting_lines,
)
from dsprof.reports.html.view import View
from tests.factories import diagnosis as factory
from tests.reports.html.test_drawings import snapshot

LIBRARY = "/x/lib/python3.11/site-packages/torch/functional.py:373 einsum"


def memory(*stacks: tuple[list[str], int]) -> FlameGraph:
    row = snapshot(0, 8, 0, 0)
    row.stacks = [StackRow(calls=calls, bytes=nbytes) for calls, nbytes in stacks]
    made = held_memory(row)
    assert made is not None
    return made


def named(made: FlameGraph, start: str) -> Box:
    (box,) = (box for box in made.boxes if box.title.startswith(start))
    return box


def test_a_frame_is_as_wide_as_what_is_below_it_and_begins_where_its_parent_does() -> None:
    made = memory(
        (["/a/main.py:1 main", "/a/model.py:7 forward", LIBRARY], 60),
        (["/a/main.py:1 main", "/a/optim.py:3 step"], 20),
        ([], 20),
    )
    main, forward, step = (named(made, f"/a/{name}") for name in ("main", "model", "optim"))
    assert (main.left, main.width, main.top_px) == (0, 80, 20)
    assert (forward.left, forward.width) == (0, pytest.approx(60))
    assert (step.left, step.width) == (pytest.approx(60), pytest.approx(20))
    assert (named(made, LIBRARY).kind, main.kind) == ("library", "own")
    assert named(made, "no call stack recorded").kind == "others"
    assert main.label == "main a/main.py:1"
    assert (
        made.sentence
        == "100 B in use on rank 0; the largest part is 60 B in /a/model.py:7 forward."
    )


def test_many_frames_are_summed_and_deep_stacks_are_cut() -> None:
    wide = [([f"/a/main.py:{line} f"], 1000 - line) for line in range(2 * MOST_FRAMES)]
    made = memory(*wide)
    assert len(made.boxes) == MOST_FRAMES + 2  # the whole and the others
    level = [box for box in made.boxes if box.top_px]
    assert sum(box.width for box in level) == pytest.approx(100)
    assert level[-1].kind == "others"
    deep = memory(([f"/a/main.py:{line} f" for line in range(100)], 1))
    assert len(deep.boxes) == MOST_DEPTH + 1


def test_lines_wait_by_phase_and_what_was_not_measured_is_not_drawn() -> None:
    def row(site: str, exposed_ns: float | None) -> CallSiteRow:
        return CallSiteRow(
            site=site, phase="step", op="all_reduce", calls_per_step=1, exposed_ns=exposed_ns
        )

    made = waiting_lines([row("/a/train.py:4 main", 3e6), row("", 1e6), row("/a/b.py:1 f", None)])
    assert made is not None
    assert [(box.label, box.width) for box in made.boxes] == [
        ("4.00 ms exposed communication per rank and step", 100),
        ("step", 100),
        ("a/train.py", 75),
        ("main", 75),
        ("line 4", 75),
        ("all_reduce", 75),
        ("no line of the program: called from C++", 25),
        ("all_reduce", 25),
    ]
    assert waiting_lines([row("/a/b.py:1 f", None)]) is None


def test_a_picture_of_one_line_would_say_nothing() -> None:
    made = factory.diagnosis()
    assert View(made).waiting_lines is not None
    made.call_sites = made.call_sites[:1]
    assert View(made).waiting_lines is None
