"""The whole of a rolling recording on the page: a drawing, and the numbers in a table."""

from __future__ import annotations

from typing import Any

import pytest

from dsprof.diagnosis.build import diagnosis_of
from dsprof.diagnosis.parts.history import History, HistorySpan, KeptStep
from dsprof.reports import render, tables
from dsprof.reports.html.history_drawing import history_drawing
from tests.analysis.aggregates.test_history import at_pace
from tests.factories.trace import step, summary

MS = 10**6


def span(number: int, mean_ms: int, **fields: Any) -> HistorySpan:
    times = {"mean_ns": mean_ms * MS, "fastest_ns": mean_ms * MS, "slowest_ns": mean_ms * MS}
    rest = {"slowest_step": number, "slowest_rank": 0, "blocked_ns": 0, "stalled_ns": 0, "bytes": 0}
    return HistorySpan(begin_s=number * 10, ranks=2, steps=5, **(times | rest | fields))


def test_a_line_of_means_with_the_slowest_step_named() -> None:
    spans = [span(0, 100), span(1, 100, slowest_ns=900 * MS, slowest_step=7)]
    drawing = history_drawing(History(length_s=10, spans=spans, steps=10))
    assert drawing is not None
    assert drawing.sentence == (
        "Time of a step over 10 steps, in spans of 10.0 s; the slowest is step 7 with 900 ms."
    )
    tallest = max(drawing.height_px, 0)
    assert all(0 <= word.y <= tallest for word in drawing.words)


def test_no_more_times_than_a_phone_has_room_for() -> None:
    drawing = history_drawing(History(length_s=10, spans=[span(n, 100) for n in range(40)]))
    assert drawing is not None
    assert [word.text for word in drawing.words] == ["01-01 00:00:00", "01-01 00:03:20"]


def test_a_single_span_is_read_in_the_table() -> None:
    found = History(length_s=10, spans=[span(0, 100)], steps=5)
    assert history_drawing(found) is None
    (row,) = tables.time.history(found).rows
    assert row[:4] == ("01-01 00:00:00", 2, 5, 100 * MS)


def test_a_time_that_no_calendar_has_is_a_number() -> None:
    far = [span(0, 100), span(10**13, 100), span(10**17, 100)]
    found = History(length_s=10, spans=far, steps=5)
    assert [row[0] for row in tables.time.history(found).rows] == [
        "01-01 00:00:00",
        str(10**14),
        str(10**18),
    ]
    assert history_drawing(found) is not None


def test_kept_steps_say_why() -> None:
    slow = KeptStep(step=7, why="slow", times=3.0, ranks=2)
    captured = KeptStep(step=9, why="capture", times=None, ranks=2, cause="SIGUSR2", steps=20)
    table = tables.time.kept_steps(History(kept=[slow, captured], kept_left_out=1234))
    assert table.rows == (
        (7, 1, "slow", "3", 2, None),
        (9, 20, "SIGUSR2", None, 2, None),
    )
    assert table.caption.endswith("(1,234 more rows left out)")


@pytest.mark.parametrize("newest_from", [0, 3_590])
def test_the_first_map_is_of_the_whole_run_where_steps_are_left_out(newest_from: int) -> None:
    traces = [at_pace(rank, range(1200, 1260)) for rank in range(3)]
    for trace in traces:
        trace.newest_from = newest_from
        trace.steps = [step(n, n, n + 1) for n in range(3_590, 3_600)]
    page = render(diagnosis_of(summary(*traces), {}), "html").decode()
    first, _ = page.split('<section id="findings">', 1)
    assert ("over the whole run" in first) == bool(newest_from)
    assert ("by rank and step" in first) != bool(newest_from)
    assert "over the whole run" in page
    assert "by rank and step" in page
