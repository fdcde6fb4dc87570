"""The sections on flight recorder dumps and on memory snapshots."""

from __future__ import annotations

import re
from pathlib import Path

from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.document import from_json, to_json
from dsprof.diagnosis.model import Diagnosis
from dsprof.reports import render, tables
from dsprof.trace.run import find_run
from tests.factories import flight, snapshot
from tests.reports.pages import parse

CALLERS = "<b>me</b>"


def judged(folder: Path) -> Diagnosis:
    """Rank 1 of 3 is absent; rank 0 left a snapshot, too."""
    for rank in range(3):
        calls = [flight.call(1, done=True), *([] if rank == 1 else [flight.call(2)])]
        calls.append(flight.call(7, "send 0->1", p2p_seq_id=7, group="5", label=CALLERS))
        groups = {"0": range(3), "5": range(3)}
        flight.write(folder, rank, flight.document(calls, groups))
    history = [snapshot.event("alloc", 1, 3), snapshot.event("free_requested", 1, 3)]
    blocks = snapshot.segment(10, -6)
    snapshot.write(folder / "memory.rank0.pickle", [blocks], history)
    return diagnose(find_run([folder]))


def test_dumps_are_no_record_of_dsprof(tmp_path: Path) -> None:
    assert not judged(tmp_path).quality.is_recorded


def test_dumps_are_said_to_be_read_and_count_no_steps(tmp_path: Path) -> None:
    for rank in range(2):
        calls = [flight.call(4, done=True), flight.call(5)]
        flight.write(tmp_path, rank, flight.document(calls))
    made = diagnose(find_run([tmp_path]))
    few = r"No problems found in [1-9] of \d\d checks\."
    end = " Read: flight recorders of 2 ranks, 2 calls in flight."
    assert re.sub(few, "", made.headline.line) == end
    page = parse(render(made, "html"))
    said = page.one("section", id="findings").one("p", _class="empty").text
    assert re.fullmatch(few, said)
    for form in ("html", "text"):
        assert b"0 steps" not in render(made, form)


def test_a_dump_of_one_rank_asks_for_the_others(tmp_path: Path) -> None:
    flight.write(tmp_path, 0, flight.document([flight.call(5)]))
    line = diagnose(find_run([tmp_path])).headline.line
    assert line.endswith(
        "flight recorders of 1 rank, 1 call in flight. Give the dumps of all ranks."
    )


def test_groups_with_something_in_flight_are_listed(tmp_path: Path) -> None:
    diagnosis = judged(tmp_path)
    table = tables.flight_recorders.flights(diagnosis.flights)
    assert [len(row) for row in table.rows] == [len(table.columns)] * 2
    stuck, sends = table.rows
    assert stuck[:4] == ("default_pg", "0", "0-2", 1)
    assert stuck[5:10] == ("all_reduce 2", 1024, "Float", "0, 2", "1")
    assert sends[3:6] == (0, 3, "")


def test_snapshots_say_who_held_memory_at_the_peak(tmp_path: Path) -> None:
    layout, held = tables.memory.snapshots(judged(tmp_path).snapshots)
    assert [len(row) for row in layout.rows] == [len(layout.columns)]
    mib = 1 << 20
    assert layout.rows[0][:6] == (0, 16 * mib, 10 * mib, 0, 6 * mib, 6 * mib)
    assert held.rows == (
        (0, "/home/me/model.py:1 forward", 3 * mib),
        (0, "allocated before the history began", 10 * mib),
    )


def test_the_page_shows_both_and_escapes_what_files_say(tmp_path: Path) -> None:
    diagnosis = judged(tmp_path)
    page = parse(render(diagnosis, "html"))
    assert "not called by" in page.one("section", id="flights").text.lower()
    assert "stuck" in page.one("section", id="memory").text.lower()
    assert not page.one("section", id="flights").all("b")
    assert from_json(to_json(diagnosis), "x") == diagnosis


def test_the_sources_of_the_run_are_all_files(tmp_path: Path) -> None:
    assert len(judged(tmp_path).run.source) == 4
