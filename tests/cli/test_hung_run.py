"""A run that hung and was killed: every format and `dsprof check` say the same."""

from __future__ import annotations

import json
import os
from html import unescape
from pathlib import Path

import pytest

from dsprof.__main__ import main
from dsprof.trace.dumps.hang_dump import HangDump, ThreadStack, write_dump
from dsprof.trace.lines import Line
from tests.analysis.hang.test_ras import BEHIND, HEAD
from tests.factories import logs
from tests.factories.hangs import write_killed
from tests.factories.trace import header
from tests.factories.trace_files import encode, run_events, write_run

_FIRST = 4026531836  # the PID namespace that no container has

NEVER_CAME = "Rank 2 never entered all_reduce 4 of group world (1.00 MiB); ranks 0-1 waited 29.6 s"


@pytest.mark.parametrize(
    ("waiting", "start"),
    [((0, 1), NEVER_CAME), ((), "The records of ranks 0-2 break off after step 3: killed")],
    ids=["hung", "killed"],
)
def test_all_formats_and_the_budget_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], waiting: tuple[int, ...], start: str
) -> None:
    write_killed(tmp_path, *waiting)
    said = {}
    for form in ("json", "text", "html"):
        out = tmp_path / f"page.{form}"
        assert main(["report", str(tmp_path), "--format", form, "-o", str(out)]) == 0
        said[form] = " ".join(unescape(out.read_text()).split())
    assert json.loads((tmp_path / "page.json").read_text())["verdict"].startswith(start)
    assert start in said["text"]
    assert start in said["html"]
    assert not any("No problem" in text for text in said.values())
    (tmp_path / "budget.yaml").write_text("bytes_per_step: 1e12\n")
    capsys.readouterr()
    assert main(["check", str(tmp_path), "--budget", str(tmp_path / "budget.yaml")]) == 1
    assert start in capsys.readouterr().out


def hang(folder: Path, *arguments: str) -> int:
    return main(["hang", str(folder), *arguments])


def test_the_command_names_the_rank_in_every_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_killed(tmp_path, 0, 1)
    assert hang(tmp_path) == 1
    assert " ".join(capsys.readouterr().out.split()).startswith(NEVER_CAME)
    assert hang(tmp_path, "--format", "json") == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["schema_version"], document["verdicts"][0]["ranks"]) == (1, [2])
    page = tmp_path / "hang.html"
    assert hang(tmp_path, "--format", "html", "-o", str(page)) == 1
    assert NEVER_CAME in unescape(page.read_text()).replace("\N{NO-BREAK SPACE}", " ")


def test_a_run_without_a_hang_has_the_code_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_killed(tmp_path)
    assert hang(tmp_path, "--format", "json") == 0
    assert [one["kind"] for one in json.loads(capsys.readouterr().out)["verdicts"]] == ["unknown"]


def test_a_trace_that_was_skipped_is_named_with_the_unknown_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = write_run(tmp_path)
    first.write_bytes(b"")
    assert hang(tmp_path, "--format", "json") == 0
    [verdict] = json.loads(capsys.readouterr().out)["verdicts"]
    assert (verdict["kind"], verdict["ranks"]) == ("unknown", [0])
    assert f"Skipped: {first}: the file is empty" in verdict["cause"]["text"]


def test_a_log_alone_tells_of_no_hang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.log").write_text("\n".join(logs.run(logs.every("Using network IB"))))
    assert hang(tmp_path) == 0
    assert capsys.readouterr().out.startswith("Unknown: no dsprof trace of a run")


def test_output_of_py_spy_beside_the_traces_tells_what_the_rank_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_killed(tmp_path, 0, 1)
    frames = "    get (/usr/lib/python3/queue.py:171)\n    train (train.py:4)\n"
    text = f'Process 102: python train.py\nThread 102 (idle): "MainThread"\n{frames}'
    (tmp_path / "stacks.txt").write_text(text)
    assert hang(tmp_path, "--format", "json") == 1
    [verdict] = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdict["stacks"]["2"] == ["/usr/lib/python3/queue.py:171 get", "train.py:4 train"]
    assert verdict["cause"]["kind"] == "lock"


def test_the_log_of_the_kernel_beside_the_traces_tells_what_killed_the_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_killed(tmp_path, 0, 1, pid_namespace=_FIRST)
    text = "[1.000000] Linux version 6\n[99.000000] Out of memory: Killed process 102 (python3) x\n"
    (tmp_path / "dmesg.txt").write_text(text)
    assert hang(tmp_path, "--format", "json") == 1
    [verdict] = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdict["cause"]["kind"] == "out_of_memory"
    assert verdict["ranks"] == [2]


def test_a_log_of_the_kernel_is_of_the_host_that_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, host in enumerate(("gpu-7.example.org", "gpu-71", "gpu-71")):
        head = header(rank, 3, host=host, pid=102, pid_namespace=_FIRST)
        events: list[Line] = [*run_events(head)[:-1]]
        (tmp_path / f"trace.rank{rank:05d}.json").write_bytes(encode(events))
    (tmp_path / "dmesg.gpu-7.log").write_text("[99.000000] Killed process 102 (python3) x\n")
    assert hang(tmp_path, "--format", "json") == 1
    first, *_ = json.loads(capsys.readouterr().out)["verdicts"]
    assert first["ranks"] == [0]
    assert first["cause"]["kind"] == "out_of_memory"


def put_in_path(program: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("dsprof.trace.life.boot_id", lambda: "boot-a")


def test_py_spy_is_asked_for_the_stacks_of_a_live_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_killed(tmp_path, 0, 1)
    script = (
        'echo "Process $4: python"\n'
        'echo \'Thread 1 (idle): "MainThread"\'\necho "    at (file$4.py:1)"'
    )
    put_in_path(tmp_path / "bin/py-spy", script, monkeypatch)
    assert hang(tmp_path, "--live", "--format", "json") == 1
    [verdict] = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdict["stacks"]["2"] == ["file102.py:1 at"]


def test_the_kernel_is_asked_for_its_log_of_a_live_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_killed(tmp_path, 0, 1, pid_namespace=_FIRST)
    script = "echo '[99.000000] python3[102]: segfault at 0 ip 0 sp 0 error 4 in libc.so.6[7f+1]'"
    put_in_path(tmp_path / "bin/dmesg", script, monkeypatch)
    monkeypatch.setattr("dsprof.diagnosis.hang_evidence.boot_id", lambda: "boot-a")
    assert hang(tmp_path, "--live", "--format", "json") == 1
    [verdict] = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdict["cause"]["text"].startswith(
        "Rank 2 (process 102) crashed with a segfault in libc"
    )


def test_what_a_rank_wrote_of_itself_lies_beside_its_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_killed(tmp_path, 0, 1)
    stack = ThreadStack("MainThread", ("/usr/lib/python3/queue.py:171 get",))
    later_ns = 51 * 10**9
    for rank, pid in ((0, 7), (2, 102)):  # the one of rank 0 is of another process
        head = header(rank, 3, pid=pid)
        write_dump(tmp_path, HangDump(head, 0, later_ns, "quiet", threads=[stack]))
    assert hang(tmp_path, "--format", "json") == 1
    [verdict] = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdict["cause"]["kind"] == "lock"
    assert verdict["stacks"] == {"2": [*stack.frames]}


def test_output_of_ncclras_is_read_with_traces_and_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ras.txt").write_text(HEAD + BEHIND)
    assert hang(tmp_path) == 1
    assert capsys.readouterr().out.startswith("Rank 3 of communicator 1-0 is behind")
    write_killed(tmp_path, 0, 1)
    assert hang(tmp_path, "--format", "json") == 1
    found = json.loads(capsys.readouterr().out)["verdicts"]
    assert [one["ranks"] for one in found] == [[2], [3]]


def test_output_of_ncclras_that_ends_early_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ras.json").write_text('{"communicators_count": 1, "communicators": [{"hash"')
    assert hang(tmp_path) == 2
    assert "its JSON is incomplete" in capsys.readouterr().err
    write_killed(tmp_path, 0, 1)
    assert hang(tmp_path, "--format", "json") == 1
    *_, last = json.loads(capsys.readouterr().out)["verdicts"]
    assert "its JSON is incomplete" in last["sentence"]
