"""`dsprof export`: files of other programs, written whole or not at all."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path

import pytest

from dsprof.__main__ import main
from tests.cli.command import dsprof, environment
from tests.factories.trace import header
from tests.factories.trace_files import write_run, write_trace


@pytest.mark.parametrize("form", ["perfetto", "chrome", "csv", "parquet"])
def test_it_writes_the_file_and_says_where(tmp_path: Path, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    write_run(tmp_path / "traces")
    done = dsprof("export", "traces", "--to", form, "-o", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"Exported: {tmp_path / 'out'}\n"
    content = (tmp_path / "out").read_bytes()
    if form == "chrome":
        assert {event["pid"] for event in json.loads(content)["traceEvents"]} == {0, 1}
    elif form == "csv":
        rows = list(csv.DictReader(content.decode().splitlines()))
        assert [(row["rank"], row["seq"]) for row in rows][3:5] == [("0", "3"), ("1", "0")]
        assert rows[0]["size_bytes"] == str(1 << 20)
        assert rows[0]["peer"] == ""
    elif form == "parquet":
        from pyarrow import parquet

        table = parquet.read_table(tmp_path / "out")
        assert table.column("end_ns").type == "int64"
        assert table.column("peer").null_count == table.num_rows == 8
    else:
        assert content.startswith(b"\x0a")


@pytest.mark.parametrize("form", ["perfetto", "chrome", "csv", "parquet"])
def test_it_writes_to_standard_output(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
    form: str,
) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "traces")
    assert main(["export", "traces", "--to", form, "-o", "out"]) == 0
    capfdbinary.readouterr()
    assert main(["export", "traces", "--to", form, "-o", "-"]) == 0
    assert capfdbinary.readouterr().out == (tmp_path / "out").read_bytes()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out", "traces"]


@pytest.mark.parametrize("form", ["perfetto", "chrome", "csv"])
def test_a_full_disk_for_temporary_files_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    form: str,
) -> None:
    monkeypatch.setattr("dsprof.cli.export.TemporaryFile", partial(open, "/dev/full", "w+b"))
    write_run(tmp_path)
    assert main(["export", str(tmp_path), "--to", form, "-o", "-"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "temporary files: No space left on device; set TMPDIR" in said.err


def test_another_table(tmp_path: Path) -> None:
    write_run(tmp_path / "traces")
    done = dsprof(
        *("export", "traces", "--to", "csv", "--table", "findings", "-o", "out"), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "out").read_text().splitlines()))
    assert "data-quality" in {row["rule"] for row in rows}
    assert {row["status"] for row in rows} > {"pass"}


def test_steps_that_are_left_out_are_counted(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    write_trace(tmp_path / "traces/trace.rank00000.json", header(0, 1), steps=20_000)
    options = ("export", "traces", "--to", "csv", "-o", "out", "--table")
    done = dsprof(*options, "steps", cwd=tmp_path)
    count = len((tmp_path / "out").read_text().splitlines()) - 1
    assert 0 < count < 20_000
    assert done.stderr == (
        f"dsprof: {count:,} of 20,000 steps; --table rank_steps has all, by rank\n"
    )
    assert dsprof(*options, "rank_steps", cwd=tmp_path).stderr == ""
    assert len((tmp_path / "out").read_text().splitlines()) - 1 == 20_000


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    write_run(tmp_path / "traces", started_monotonic_ns=0)
    (tmp_path / "out").write_text("before")
    done = dsprof("export", "traces", "--to", "perfetto", "-o", "out", cwd=tmp_path)
    assert done.returncode == 2
    assert "no times" in done.stderr
    assert (tmp_path / "out").read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "traces"]


def test_a_trace_is_not_overwritten(tmp_path: Path) -> None:
    first, _ = write_run(tmp_path / "traces")
    before = first.read_bytes()
    done = dsprof("export", "traces", "--to", "csv", "-o", first, cwd=tmp_path)
    assert done.returncode == 2
    assert "it is an input file" in done.stderr
    assert first.read_bytes() == before


def test_parquet_without_pyarrow_names_it(tmp_path: Path) -> None:
    write_run(tmp_path / "traces")
    (tmp_path / "hidden" / "pyarrow").mkdir(parents=True)
    (tmp_path / "hidden" / "pyarrow" / "__init__.py").write_text("raise ImportError")
    done = dsprof(
        *("export", "traces", "--to", "parquet", "-o", "out"),
        cwd=tmp_path,
        env=environment(tmp_path / "hidden"),
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "dsprof: pyarrow is not installed; run: pip install pyarrow\n"
    assert not (tmp_path / "out").exists()
