"""Bad input: one clear line each, exit code 2, no traceback, nothing half-written."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dsprof.__main__ import main
from dsprof.diagnosis.document import to_json
from tests.analysis.hang.test_ras import BEHIND, HEAD
from tests.cli.command import dsprof, environment
from tests.factories import flight
from tests.factories.diagnosis import diagnosis
from tests.factories.trace_files import write_run

SAVED = to_json(diagnosis())
UNEVEN = {
    "rule": "a",
    "title": "b",
    "status": "fail",
    "summary": "c",
    "evidence": [{"columns": [{"label": "d"}], "rows": [["e", "f"]]}],
}


def other_version(data: bytes) -> bytes:
    return re.sub(rb'"schema_version": ?1\b', b'"schema_version":99', data, count=1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a good run, and files that are none."""
    monkeypatch.chdir(tmp_path)
    good = write_run(tmp_path / "good")[0].read_bytes()
    files = {
        "empty.json": b"",
        "blank.json": b"\n[\n",
        "cut.json": good[:100],
        "other.json": b'{"traceEvents": []}',
        "list.json": b'[\n{"ph": "X", "cat": "cpu_op", "args": {}}\n]',
        "binary.json": bytes(range(256)) * 10,
        "deep.json": b"[" * 100_000,
        "version.json": other_version(good),
        "rank.json": good.replace(b'"rank":0', b'"rank":7', 1),
        "saved.json": SAVED,
        "saved-version.json": other_version(SAVED),
        "saved-other.json": json.dumps({"schema_version": 1, "findings": []}).encode(),
        "saved-row.json": json.dumps({**json.loads(SAVED), "findings": [UNEVEN]}).encode(),
        "hostile.pkl": b"\x80\x02cos\nsystem\nX\x06\x00\x00\x00touch x\x85R.pg_config pg_status",
        "cut.pkl": pickle.dumps(flight.document([flight.call(1)]))[:-20],
        "nobody.pkl": pickle.dumps(flight.document([flight.call(1)])),
        "cut.json.pkl": json.dumps(flight.document([flight.call(1)])).encode()[:-20],
        "ras.txt": (HEAD + BEHIND).encode(),
        "stacks.txt": b'Process 7: python\nThread 7 (idle): "MainThread"\n    f (a.py:1)\n',
        "ds.json": b'{"train_batch_size": 8, "zero_optimization": {"stage": 2}}',
        "stacks.json": b'[{"pid": 7, "active": true, "owns_gil": true, "frames": []}]',
        "error.json": b'{"message": {"message": "E: e", "extraInfo": {"py_callstack": "T"}}}',
        "dmesg.txt": b"[1.200000] NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.\n",
        "train.err": b"Traceback (most recent call last):\n  File 'a.py'\nValueError: x\n",
        "a.nsys-rep": b"\0\1\2",
        "lfs.nsys-rep": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        "page.html": b"<script>\nimport {add_local_files} from 'x/torch/utils/viz/MemoryViz.js'\n",
        "sdk.json": b'{"rocprofiler-sdk-tool": [{"metadata": {}}]}',
        "api.csv": b'"Domain","Function","Process_Id","Thread_Id"\n"HIP_API","hipMalloc",1,1\n',
        "spans.csv": b'"Kind","Agent_Id","Queue_Id","Kernel_Id"\n"KERNEL_DISPATCH",1,1,10\n',
        "key.yaml": b"outt: x\n",
        "type.yaml": b"every: often\n",
        "all.yaml": b"outt: x\nevery: often\nrules:\n  none: {}\n",
        "syntax.yaml": b"out: [\n",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "nothing").mkdir()
    for name in "abcdef":
        (tmp_path / "parent" / name).mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


REPORTS = [
    ("missing.json", r"missing\.json: .*No such file"),
    ("dsprof-out", r"dsprof-out: .*No such file or directory; record a run first: DSPROF=1 "),
    ("good/trace.rank00000.json missing.json", r"missing\.json: .*No such file"),
    ("nothing", r"nothing: no trace files \(trace\*.*give the folder that the run named"),
    ("parent", r"parent: no trace files .*not searched; give one of these: a, .* and 1 more"),
    ("empty.json", r"empty\.json: the file is empty"),
    ("blank.json", r"blank\.json: .*not a dsprof trace"),
    ("cut.json", r"cut\.json: not a dsprof trace"),
    ("other.json", r"other\.json: not a usable trace: no event has a time"),
    ("list.json", r"list\.json: not a usable trace"),
    ("binary.json", r"binary\.json: not a dsprof trace"),
    ("deep.json", r"deep\.json: not a dsprof trace"),
    ("ras.txt", r"ras\.txt: output of ncclras; give it to `dsprof hang`"),
    ("stacks.txt", r"stacks\.txt: output of py-spy; give it to `dsprof hang`, with the traces"),
    ("stacks.json", r"stacks\.json: JSON of py-spy; run it without --json, and give its output"),
    ("error.json", r"error\.json: the traceback of a rank of torchrun; give the log of torchrun"),
    ("dmesg.txt", r"dmesg\.txt: a log of a kernel; give it to `dsprof hang`, with the traces"),
    ("train.err", r"train\.err: a traceback without a rank; give the whole log of the job"),
    ("ds.json", r"ds\.json: a configuration of DeepSpeed; give it to `dsprof lint`"),
    ("a.nsys-rep", r"a\.nsys-rep: a report of Nsight Systems; run `nsys export --type sqlite`"),
    ("lfs.nsys-rep", r"lfs\.nsys-rep: a pointer of Git LFS, not the file; run `git lfs pull`"),
    ("page.html", r"page\.html: a page of torch's memory viewer; give the snapshot"),
    ("sdk.json", r"sdk\.json: output of rocprofv3, which is not read; record"),
    ("api.csv", r"api\.csv: output of rocprofv3, which is not read; record"),
    ("spans.csv", r"spans\.csv: output of rocprofv3, which is not read; record"),
    ("version.json", r"version\.json: written in trace version 99"),
    ("rank.json", r"rank\.json: line 1: invalid rank 7 for world size 2"),
    ("empty.json other.json", r"empty\.json: the file is empty.*nor can the other file be read"),
    ("hostile.pkl", r"hostile\.pkl: a pickle that would import a class or call a function"),
    ("cut.pkl", r"cut\.pkl: a pickle that is cut or damaged"),
    ("nobody.pkl", r"nobody\.pkl: neither the dump nor its file name states the rank"),
    ("cut.json.pkl", r"cut\.json\.pkl: a dump that is cut or damaged"),
    ("saved-version.json", r"saved-version\.json: diagnosis of schema version 99"),
    ("saved-other.json", r"saved-other\.json: not a dsprof diagnosis"),
    ("saved-row.json", r"saved-row\.json: not a dsprof diagnosis: a row of a table has not one"),
    ("saved.json good", r"saved\.json: a saved diagnosis is shown as it is"),
    ("saved.json --config key.yaml", r"saved\.json: a saved diagnosis is shown as it is"),
    ("", r"the path is empty; write a file, a folder, or \. for this folder"),
    ("good -o absent/report.html", r"cannot write absent/report\.html: there is no folder"),
    ("good -o nothing", r"cannot write nothing: it is a folder"),
    ("good -o other.json/x", r"cannot write other\.json/x: there is no folder"),
    ("good/trace.rank00000.json -o good/trace.rank00000.json", r"00\.json: it is an input file"),
    (
        "good -o good/trace.rank00001.json",
        r"write good/trace\.rank00001\.json: it is an input file",
    ),
    (
        "good --config key.yaml --format html -o key.yaml",
        r"cannot write key\.yaml: it is an input file",
    ),
    ("good --config missing.yaml", r"missing\.yaml: cannot be read: No such file"),
    ("good --config key.yaml", r"key\.yaml:1:1: unknown key 'outt' - did you mean 'out'\?"),
    ("good --config type.yaml", r"type\.yaml:1:8: 'every' must be a whole number"),
    ("good --config syntax.yaml", r"syntax\.yaml:2:1: not YAML"),
    ("pipe", r"pipe: cannot be read: not a regular file"),
    ("good --config pipe", r"pipe: cannot be read: not a regular file"),
    ("good --config good", r"good: cannot be read: it is a folder; give a file in it"),
    ("good --config lfs.nsys-rep", r"cannot be read: a pointer of Git LFS, not the file; run"),
    ("good --baseline lfs.nsys-rep", r"lfs\.nsys-rep: a pointer of Git LFS, not the file; run"),
    ("good --baseline good", r"the baseline good: it is a folder; give a file in it"),
    ("\x1b[31m\n\u2028.json", r"\\x1b\[31m\\n\\u2028\.json: .*No such file"),
    ("good --config \x1b[31m\n.yaml", r"\\x1b\[31m\\n\.yaml: cannot be read"),
    ("good --format docx", r"unknown --format value 'docx'; known: html, json, text"),
    ("good --format \x1b[31m", r"unknown --format value '\\x1b\[31m'; known"),
    ("good -o x.docx", r"format 'docx' of x\.docx; known: html, json, text; give --format"),
    (
        "good --formt html",
        r"unknown option '--formt' - did you mean '--format'\? \(see dsprof report --help\)",
    ),
    (
        "--formt html",
        r"unknown option '--formt' - did you mean '--format'\? \(see dsprof report --help\)",
    ),
    ("good --format text --open", r"--open needs a page in a file; use --format html"),
    ("good -o - --open", r"--open needs a page in a file"),
    ("--format text", r"required: PATH"),
]


@pytest.mark.parametrize(("arguments", "message"), REPORTS, ids=[ascii(row[0]) for row in REPORTS])
def test_a_report_that_cannot_be(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    before = contents(folder)
    assert main(["report", *arguments.split(" ")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(rf"dsprof: .*{message}.*\n", said.err)
    assert contents(folder) == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name",
    [
        "trace.rank00000.json",
        "link.json",
        "hosts/node/trace.rank00001.json",
        "hosts/node/trace.rank00001.tail0",
        "hang-rank00000.json",
    ],
)
def test_no_report_replaces_what_the_run_recorded(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (folder / "good/hosts/node").mkdir(parents=True)
    trace = (folder / "good/trace.rank00000.json").read_bytes()
    if name == "link.json":
        (folder / "elsewhere.rank0.json").write_bytes(trace)
        (folder / "good/link.json").symlink_to(folder / "elsewhere.rank0.json")
    else:
        (folder / "good" / name).write_bytes(b"{}" if "hang" in name else trace)
    before = contents(folder)
    assert main(["report", "good", "--format", "json", "-o", f"good/{name}"]) == 2
    assert "it is an input file; choose another place" in capsys.readouterr().err
    assert contents(folder) == before


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("option", ["--ranks", "--hosts", "--steps", "--since"])
def test_an_empty_selection_is_not_everything(
    capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert main(["report", "good", option, ""]) == 2
    assert "invalid" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_every_mistake_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "good", "--config", "all.yaml"]) == 2
    said = capsys.readouterr().err
    places = re.findall(r"^dsprof: all\.yaml:(\d+:\d+): ", said, flags=re.MULTILINE)
    assert places == ["1:1", "2:8", "4:3"]
    assert said.count("\n") == 3


@pytest.mark.usefixtures("folder")
def test_every_missing_file_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "no.json", "good", "none.json"]) == 2
    said = capsys.readouterr().err
    missing = re.findall(r"^dsprof: (.*): cannot be read: No such file", said, re.M)
    assert missing == ["no.json", "none.json"]


def test_a_report_may_replace_an_older_one_among_the_traces(folder: Path) -> None:
    for _ in range(2):
        done = dsprof("report", "good", "-o", "good/report.html", cwd=folder)
        assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("folder")
def test_of_many_mistakes_the_first_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Path("many.yaml").write_text("".join(f"key{number}: 1\n" for number in range(3000)))
    assert main(["report", "good", "--config", "many.yaml"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 21
    assert lines[19].startswith("dsprof: many.yaml:20:1: unknown key 'key19'")
    assert lines[20] == "dsprof: and 2980 more mistakes"


def test_names_of_files_do_not_steer_the_terminal(folder: Path) -> None:
    Path("good").rename("\x1b[31m\n")
    done = dsprof("report", "\x1b[31m\n", "-o", "\x1b[32m\n.html", cwd=folder)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert done.stdout.endswith("/\\x1b[32m\\n.html\n")


def test_a_pipe_as_output_is_opened_when_the_report_is_there(folder: Path) -> None:
    command = [sys.executable, "-m", "dsprof", "report", "good", "-o", "pipe"]
    with subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"dsprof: waiting for a reader of pipe\n"
        page = Path("pipe").read_bytes()
        process.communicate(timeout=240)
    assert process.returncode == 0
    assert page.startswith(b"<!doctype html>")


def test_an_old_report_stays_when_the_new_one_fails(folder: Path) -> None:
    Path("report.html").write_text("old")
    assert main(["report", "empty.json"]) == 2
    assert Path("report.html").read_text() == "old"


def refuse(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


# The tests may run as root, whom no permission stops: the refusal of the system is put in place.
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("pathlib.Path.iterdir", "good: the folder cannot be read"),
        ("dsprof.trace.source.open_input", "cannot be read"),
    ],
)
def test_what_may_not_be_read_is_one_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    function: str,
    message: str,
) -> None:
    monkeypatch.setattr(function, refuse)
    assert main(["report", "good"]) == 2
    monkeypatch.undo()
    error = capsys.readouterr().err
    assert message in error
    assert "Permission denied" in error


def test_a_folder_that_may_not_be_written_is_refused_before_the_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def access(path: object, mode: int) -> bool:
        return mode != os.W_OK

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr("dsprof.trace.run.find_run", unexpected)
    assert main(["report", "good"]) == 2
    assert "cannot write report.html: no permission" in capsys.readouterr().err


def unexpected(*_: object) -> None:
    raise RuntimeError("first line\nsecond line")


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("failure", "code"), [(unexpected, 3), (interrupted, 130)])
def test_what_nobody_foresaw_is_no_traceback(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failure: Callable[..., None],
    code: int,
) -> None:
    monkeypatch.setattr("dsprof.trace.run.find_run", failure)
    assert main(["report", "good"]) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (code == 3)
    assert all("RuntimeError: first line second line at " in line for line in lines)


@pytest.mark.parametrize("command", [["explain"], ["report", "good", "--ranks"]])
def test_no_end_of_a_credential_is_quoted(
    folder: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    address = "https://bob:correct-horse-battery@127.0.0.1/x?token=" + "staple" * 6
    assert main([*command, address]) == 2
    said = capsys.readouterr().err
    assert "bob" not in said
    assert "staple" not in said
