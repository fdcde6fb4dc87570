"""`dsprof.load`: typed rows, tables of other packages, and what a notebook shows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dsprof
from dsprof.api import Steps
from dsprof.api.loaded_run import EnvironmentFact, LoadedRun
from dsprof.api.rows import Columns, Rows
from dsprof.errors import DsprofError, TraceError
from dsprof.trace.lines import LINES, Line
from tests.factories import exports, kineto
from tests.factories import trace as make
from tests.factories.trace_files import encode, write_run, write_trace


def two_ranks(folder: Path, extra: list[Line] | None = None) -> LoadedRun:
    """Rank 1 was started 30 ms after rank 0; each has one flush and one reading of memory."""
    folder.mkdir(exist_ok=True)
    for rank in range(2):
        started = 50 * make.SECOND + make.ns(30) * rank
        lines: list[Line] = [
            LINES["header"](args=make.header(rank, started_monotonic_ns=started)),
            LINES["group"](args=make.group()),
            make.sync("all_reduce", 10, 5, seq=3, step=0, phase="backward"),
            make.hanging("broadcast", 20, seq=4, tensors=0),
            LINES["step"](args=make.step(0, 0, 100)),
            LINES["flush"](args=make.flush(1, 10, 5, step=0)),
            LINES["memory"](args=make.MemorySample("step", make.ns(90), 0, rss_bytes=5)),
            *(extra or []),
            LINES["trailer"](args=make.Trailer("exit", steps=1)),
        ]
        (folder / f"trace.rank{rank:05d}.json").write_bytes(encode(lines))
    return dsprof.load(folder)


def test_rows_are_on_one_clock_and_unknown_is_none(tmp_path: Path) -> None:
    run = two_ranks(tmp_path)
    first, stuck, second, _ = run.collectives
    assert (first.rank, first.op, first.group, first.seq) == (0, "all_reduce", "world", 3)
    assert (first.start_ns, first.end_ns) == (make.ns(10), make.ns(15))
    assert (second.rank, second.start_ns) == (1, make.ns(40))
    assert (first.group_key, first.seq) == (second.group_key, second.seq)
    assert (stuck.end_ns, stuck.size_bytes, stuck.step, stuck.peer) == (None, None, None, None)
    assert [(one.rank, one.start_ns) for one in run.flushes] == [
        (0, make.ns(10)),
        (1, make.ns(40)),
    ]
    reading = run.memory[-1]
    assert (reading.rank, reading.time_ns) == (1, make.ns(120))
    assert (reading.rss_bytes, reading.host_available_bytes, reading.allocated_bytes) == (
        5,
        None,
        None,
    )


def test_what_a_profiler_does_not_tell_is_none(tmp_path: Path) -> None:
    """It sees how long kernels took, not how long a collective blocked."""
    kineto.write(tmp_path / "trace.json", kineto.steps(3, 60, 40), world_size=1)
    run = dsprof.load(tmp_path)
    calls, steps = list(run.collectives), list(run.rank_steps)
    assert {one.blocked_ns for one in calls} == {None}
    assert None not in {one.start_ns for one in calls}
    assert [one.blocked_ns for one in steps] == [None] * 3
    assert steps[0].size_bytes == sum(one.size_bytes or 0 for one in calls if one.step == 0)


def test_calls_without_times_have_none(tmp_path: Path) -> None:
    """NCCL Inspector says how long a collective took, not when it ran."""
    records = [exports.communicator() | exports.collective(n, 1 << 20, 100) for n in range(2)]
    (tmp_path / "inspector.log").write_text("\n".join(map(json.dumps, records)))
    calls = dsprof.load(tmp_path).collectives
    assert [one.size_bytes for one in calls] == [1 << 20] * 2
    assert {(one.start_ns, one.end_ns, one.blocked_ns) for one in calls} == {(None, None, None)}


def test_the_size_of_a_step_is_none_if_that_of_a_call_is_unknown(tmp_path: Path) -> None:
    barrier = make.sync("barrier", 30, 1, step=0, tensors=0, nbytes=0)
    whole = two_ranks(tmp_path / "whole", [barrier])
    assert {one.size_bytes for one in whole.rank_steps} == {1 << 20}
    part = two_ranks(tmp_path / "part", [make.sync("all_gather", 30, 1, step=0, tensors=0)])
    assert {one.size_bytes for one in part.rank_steps} == {None}


def test_rows_of_the_diagnosis(tmp_path: Path) -> None:
    write_run(tmp_path)
    run = dsprof.load(tmp_path)
    assert [row.step for row in run.steps] == [0, 1, 2, 3]
    assert {one.rule for one in run.findings} >= {"late-rank", "data-quality"}
    versions = {one.name: one.value for one in run.environment if one.section == "Versions"}
    assert not versions or "torch" in versions
    assert run[Steps].exposed_share is not None


def test_rows_are_read_once_from_their_end_and_for_an_index() -> None:
    reads: list[None] = []

    def parts() -> Iterator[Columns]:
        reads.append(None)
        yield {"section": ["a"] * 3, "name": list("abc"), "value": [""] * 3, "ranks": [()] * 3}

    rows = Rows(EnvironmentFact, parts)
    assert [row.name for row in reversed(rows)] == ["c", "b", "a"]
    assert len(reads) == 1
    last = EnvironmentFact(section="a", name="c", value="")
    assert rows[2:] == [last]
    assert rows.index(last) == rows.index(last, 1) == 2
    assert len(reads) == 4
    with pytest.raises(ValueError, match="not in list"):
        rows.index(last, 0, 2)


def test_rows_are_a_sequence(tmp_path: Path) -> None:
    rows = two_ranks(tmp_path).collectives
    assert len(rows) == 4
    assert rows[1] == list(rows)[1]
    assert rows[-1] == rows[3] == rows[3:][0]
    with pytest.raises(IndexError, match="row 4 of 4"):
        _ = rows[4]
    assert repr(rows).startswith("rows of CollectiveCall: rank, step, phase, op")


def test_a_table_of_pandas_keeps_unknown_integers(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    run = two_ranks(tmp_path)
    table = run.collectives.to_pandas()
    assert list(table.end_ns.dropna()) == [make.ns(15), make.ns(45)]
    assert str(table.end_ns.dtype) == "Int64"
    assert table.step.isna().sum() == 2
    findings = run.findings.to_pandas()
    assert set(findings.status) <= {"pass", "fail", "info", "not-applicable", "unknown", "error"}
    assert findings.evidence.str.startswith("[").all()
    assert len(run.memory.to_pandas()) == 2


def test_a_table_of_polars_keeps_unknown_integers(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    table = two_ranks(tmp_path).collectives.to_polars()
    assert table.schema["end_ns"] == polars.Int64
    assert table["end_ns"].drop_nulls().to_list() == [make.ns(15), make.ns(45)]


def test_rows_are_a_table_in_a_notebook(tmp_path: Path) -> None:
    table = two_ranks(tmp_path, [make.sync("<b>", 90, 5, seq=9)] * 9).collectives._repr_html_()
    assert "<caption>CollectiveCall: the first 10 rows</caption>" in table
    assert table.count("<tr>") == 11
    assert "&lt;b&gt;" in table
    assert "<b>" not in table


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    rows = two_ranks(tmp_path).steps
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DsprofError, match=f"pip install {package}"):
        getattr(rows, f"to_{package}")()


def test_loading_reads_no_row_until_it_is_asked_for(tmp_path: Path) -> None:
    run = two_ranks(tmp_path)
    rows = run.collectives
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.raises(TraceError):
        len(rows)


def test_repr_is_a_few_lines(tmp_path: Path) -> None:
    shown = repr(two_ranks(tmp_path))
    assert shown.startswith("dsprof run: ")
    assert "2 ranks" in shown
    assert len(shown.splitlines()) < 12


def test_the_first_screen_has_no_script_and_escapes_what_a_trace_says(tmp_path: Path) -> None:
    run = two_ranks(tmp_path)
    run.diagnosis.verdict = "<script>alert(1)</script>"
    page = run._repr_html_()
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in page
    assert "<style" not in page


def test_a_notebook_shows_it(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    import nbformat

    write_run(tmp_path / "traces")
    notebook = nbformat.v4.new_notebook()
    cells = (
        f"import dsprof\nrun = dsprof.load({str(tmp_path / 'traces')!r})\nrun",
        "run.collectives",
        f"with dsprof.record(out={str(tmp_path / 'empty')!r}) as recording:\n    dsprof.step()",
        "recording.report()\nrecording",
    )
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    first, rows, quiet, unrecorded = (cell.outputs for cell in notebook.cells)
    assert "2 ranks" in first[0].data["text/plain"]
    screen = first[0].data["text/html"].replace("\N{NO-BREAK SPACE}", " ")
    assert screen.count(dsprof.load(tmp_path / "traces").diagnosis.verdict) == 1
    assert screen.count("No problems found") == 1
    assert "<caption>CollectiveCall: the first 8 rows</caption>" in rows[0].data["text/html"]
    assert quiet == []
    said, shown = unrecorded
    assert said.text.startswith("dsprof: nothing is recorded yet: no process group has")
    assert shown.data["text/plain"] == "dsprof recording: ended, no process group has communicated"


def test_figures_show_the_numbers_of_the_report(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    for rank in range(2):
        head = make.header(rank)
        write_trace(tmp_path / "traces" / f"trace.rank{rank:05d}.json", head, steps=6)
    run = dsprof.load(tmp_path / "traces")
    steps = run.plot()
    heights = np.sum([[y or 0 for y in bar.y] for bar in steps.data], axis=0)
    assert heights.tolist() == [row.total_ns / 1e6 for row in run.steps]
    assert list(steps.data[0].x) == [row.step for row in run.steps]
    (cells,) = run.plot("ranks").data
    assert list(cells.y) == ["rank 0", "rank 1"]
    assert np.array(cells.z).shape == (2, len(run.diagnosis.step_map.steps))
    assert run.plot("memory").data == ()  # none was recorded
    run.plot("bandwidth")
    with pytest.raises(ValueError, match="choose one of steps, ranks, memory, bandwidth"):
        run.plot("stpes")


def test_figures_of_all_kinds_of_rows() -> None:
    from dsprof.reports.html.plots import PLOTS
    from tests.factories import diagnosis as make

    found = make.diagnosis(ranks=3, steps=5)
    lines = PLOTS["memory"](found).data
    assert {line.name.partition(", ")[0] for line in lines} == {"rank 0", "rank 1", "rank 2"}
    (busbw,) = (one for one in PLOTS["bandwidth"](found).data if one.name == found.transfers[0].op)
    assert max(busbw.y) == max(
        row.busbw / 1e9 for row in found.transfers if row.op == found.transfers[0].op
    )
