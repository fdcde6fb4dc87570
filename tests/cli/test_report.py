"""`dsprof report` on good input, in every format and to every place."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dsprof.__main__ import main
from tests.cli.command import dsprof, environment
from tests.factories.trace_files import write_run


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of traces below the current folder."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "traces")
    return tmp_path / "traces"


def listing(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_page_is_written_and_the_findings_are_printed(traces: Path) -> None:
    done = dsprof("report", "traces", cwd=traces.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert (traces.parent / "report.html").read_bytes().startswith(b"<!doctype html>")
    assert "CHECKS" in done.stdout
    assert done.stdout.endswith(f"\nReport: {traces.parent / 'report.html'}\n")
    assert listing(traces.parent) == {"traces", "report.html"}


def test_quiet_writes_the_page_and_prints_nothing(traces: Path) -> None:
    done = dsprof("report", "traces", "--quiet", cwd=traces.parent)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (traces.parent / "report.html").exists()


def test_open_shows_the_page_in_the_browser(traces: Path) -> None:
    browser = {"BROWSER": "echo opened %s"}
    done = dsprof("report", "traces", "-q", "--open", cwd=traces.parent, env=environment(**browser))
    page = (traces.parent / "report.html").as_uri()
    assert (done.returncode, done.stdout, done.stderr) == (0, f"opened {page}\n", "")


def test_a_page_that_no_browser_shows_is_named(traces: Path) -> None:
    browser = {"BROWSER": "false %s"}
    done = dsprof("report", "traces", "-q", "--open", cwd=traces.parent, env=environment(**browser))
    page = (traces.parent / "report.html").as_uri()
    assert (done.returncode, done.stderr) == (0, f"dsprof: no browser starts here; open {page}\n")


@pytest.mark.parametrize(
    ("variables", "is_coloured"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": ""}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": ""}, True),
    ],
)
@pytest.mark.parametrize("command", ["report --format text", "hang"])
def test_colour_can_be_forced_and_forbidden(
    traces: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    variables: dict[str, str],
    *,
    is_coloured: bool,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main([*command.split(), str(traces)]) == 0
    assert ("\x1b[" in capsys.readouterr().out) == is_coloured


@pytest.mark.parametrize(
    ("variables", "is_coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_a_terminal_has_colour_and_its_width(
    traces: Path, variables: dict[str, str], *, is_coloured: bool
) -> None:
    reader, terminal = os.openpty()
    settings = environment(**{"TERM": "xterm", "COLUMNS": "70", **variables})
    command = ("report", "traces", "--format", "text")
    with open(reader, "rb", buffering=0) as shown:
        process = dsprof(*command, cwd=traces.parent, env=settings, stdout=terminal)
        os.close(terminal)
        text = shown.read(1 << 20)
    assert process.returncode == 0
    assert (b"\x1b[" in text) == is_coloured


def test_a_page_of_another_run_is_not_replaced_without_a_word(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert main(["report", "traces", "--quiet"]) == 0
        assert capsys.readouterr().err == ""
    write_run(traces.parent / "others", world_size=3)
    assert main(["report", "others", "--quiet"]) == 0
    said = capsys.readouterr().err
    assert re.fullmatch(r"dsprof: report\.html was the report of .*2 ranks, .*: replaced\n", said)
    assert b"3 ranks, " in Path("report.html").read_bytes()[:4096]


def test_a_file_that_is_no_page_is_replaced(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("report.html").write_bytes(b"\xff<meta name=")
    assert main(["report", "traces", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_files_may_be_given_one_by_one(
    traces: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    files = [str(path) for path in sorted(traces.iterdir())]
    assert main(["report", *files, "--format", "json"]) == 0
    assert json.loads(capsysbinary.readouterr().out)["run"]["ranks"] == [0, 1]
    assert main(["report", files[0], "--format", "json"]) == 0
    assert json.loads(capsysbinary.readouterr().out)["run"]["ranks"] == [0]


def test_text_and_json_go_to_standard_output(
    traces: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["report", "traces", "--format", "text"]) == 0
    assert b"CHECKS" in capsysbinary.readouterr().out
    assert listing(traces.parent) == {"traces"}


def test_a_dash_writes_nothing_but_the_report(
    traces: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["report", "traces", "-o", "-"]) == 0
    page = capsysbinary.readouterr().out
    assert page.startswith(b"<!doctype html>")
    assert page.rstrip().endswith(b"</html>")
    assert listing(traces.parent) == {"traces"}


def test_json_to_a_file_is_complete_and_can_be_shown_again(
    traces: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["report", "traces", "--format", "json", "-o", "saved.json"]) == 0
    summary = capsysbinary.readouterr().out
    assert b"CHECKS" in summary
    saved = json.loads(Path("saved.json").read_bytes())
    assert saved["schema_version"] == 1
    assert main(["report", "saved.json", "--format", "text"]) == 0
    assert capsysbinary.readouterr().out in summary


def test_thresholds_of_the_file_are_in_force(
    traces: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["report", "traces", "--format", "json"]) == 0
    threshold = json.loads(capsysbinary.readouterr().out)["thresholds"][0]
    value = threshold["value"] + 1
    Path("dsprof.yaml").write_text(
        f"rules: {{{threshold['rule']}: {{{threshold['name']}: {value}}}}}"
    )
    assert main(["report", "traces", "--format", "json", "--config", "dsprof.yaml"]) == 0
    changed = json.loads(capsysbinary.readouterr().out)["thresholds"][0]
    assert (changed["value"], changed["is_default"]) == (value, False)


def test_files_passed_over_are_named(
    traces: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    (traces / "trace.rank00007.json").write_bytes(b"")
    assert main(["report", "traces", "--format", "json"]) == 0
    strangers = json.loads(capsysbinary.readouterr().out)["quality"]["strangers"]
    assert len(strangers) == 1
    assert "trace.rank00007.json" in strangers[0]


def test_a_cut_file_is_judged_all_the_same(traces: Path) -> None:
    file = traces / "trace.rank00001.json"
    whole = file.read_bytes()
    for cut in (len(whole) - 1, len(whole) - 40, whole.index(b"\n", 4), len(whole) // 2):
        file.write_bytes(whole[:cut])
        assert main(["report", "traces"]) == 0, cut


def test_a_reader_that_has_gone_ends_it_quietly(traces: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = dsprof("report", "traces", "--format", "text", cwd=traces.parent, stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["report traces --format text", "doctor"])
def test_a_full_disk_behind_standard_output_is_one_line(traces: Path, command: str) -> None:
    with open("/dev/full", "wb") as full:
        done = dsprof(*command.split(), cwd=traces.parent, stdout=full)
    assert done.returncode == 2
    assert done.stderr == "dsprof: cannot write to standard output: No space left on device\n"


def test_unbuffered_output_that_was_cut_is_said(traces: Path) -> None:
    """A file takes what fits without an error, which comes only with the next bytes."""
    limited = f"ulimit -f 1; exec {sys.executable} -m dsprof report traces --format json > out"
    done = subprocess.run(
        ["sh", "-c", limited],
        cwd=traces.parent,
        env=environment(PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (traces.parent / "out").stat().st_size > 0
    assert done.stderr == "dsprof: cannot write to standard output: File too large\n"
    assert done.returncode == 2


def test_a_closed_standard_error_mixes_nothing_into_the_output(traces: Path) -> None:
    (traces / "trace.rank00001.json").write_text("damaged")  # which is said on standard error
    command = f"exec {sys.executable} -m dsprof report traces --format json -o - 2>&-"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=traces.parent,
        env=environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["run"]["ranks"] == [0]


def test_a_current_folder_that_was_removed_is_said_in_one_line(
    traces: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = traces.parent / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["report", str(traces)]) == 2
    assert capsys.readouterr().err.endswith(
        "the current folder was removed; change to another one\n"
    )
