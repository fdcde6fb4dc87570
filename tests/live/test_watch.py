"""`dsprof watch` on real and on finished runs, in a real terminal, and without one."""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import pytest

from dsprof.__main__ import main
from dsprof.cli import watch as command
from dsprof.diagnosis.build import diagnose
from dsprof.findings import formatting as fmt
from dsprof.findings.finding import Status
from dsprof.live.watching import Watched
from dsprof.trace.run import find_run
from tests.factories.replays import RANKS, RUNS
from tests.factories.trace_files import encode, write_run
from tests.live.test_following import TRAILER, events


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for rank in range(2):
        content = encode([*events(rank, late_ms=12), TRAILER])
        (tmp_path / f"trace.rank{rank:05d}.json").write_bytes(content)
    return tmp_path


def test_once_prints_the_findings_of_the_report(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", str(run), "--once", "--format", "json"]) == 0
    now = json.loads(capsys.readouterr().out)
    assert main(["report", str(run), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert now["findings"] == [one for one in report["findings"] if one["status"] == "fail"]
    assert now["is_over"]
    assert now["judged_steps"] == report["run"]["steps"] == 12
    # The same statistic of the same steps.
    assert now["step_ns"] == report["steps"]["median_total_ns"]
    assert now["exposed_share"] == pytest.approx(report["steps"]["exposed_share"])


def test_once_prints_the_findings_of_a_run_that_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(2):
        content = encode(events(rank, 40, late_ms=18))
        (tmp_path / f"trace.rank{rank:05d}.json").write_bytes(content.removesuffix(b"\n]\n"))
    assert main(["watch", str(tmp_path), "--once", "--format", "json"]) == 0
    now = json.loads(capsys.readouterr().out)
    assert main(["report", str(tmp_path), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    failed = [one for one in report["findings"] if one["status"] == "fail"]
    expected = [one["rule"] for one in failed if one["rule"] not in now["waiting_rules"]]
    assert not now["is_over"]
    assert [one["rule"] for one in now["findings"]] == expected != []


def test_json_of_a_run_does_not_steer_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, 1, host="node\x9b31m\u202e")
    assert main(["watch", str(tmp_path), "--once", "--format", "json"]) == 0
    text = capfd.readouterr().out
    assert all(char.isprintable() or char == "\n" for char in text)
    assert json.loads(text)["ranks"][0]["host"] == "node\x9b31m\u202e"


def test_once_prints_text(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(run), "--once"]) == 0
    text = capsys.readouterr().out
    assert "Step 11  50.0 ms per step" in text
    assert "after 12 steps" in text


def test_a_judgement_ends_with_the_command_that_is_interrupted(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Started(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Started)
    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=interrupt))
    assert main(["watch", str(run), "--once"]) == 130
    assert [one.returncode for one in started] == [-signal.SIGKILL]


LATE = ("late-rank", "late-barely", "late-and-once-for-long")


@pytest.mark.parametrize("name", [*LATE, "late-in-turn", "healthy", "noisy"])
def test_the_straggler_is_that_of_the_report(name: str, tmp_path: Path) -> None:
    for rank in RANKS:
        path = tmp_path / f"trace.rank{rank:05d}.json"
        path.write_bytes(encode(RUNS[name].lines(rank)))
    watched = Watched([tmp_path])
    watched.look()
    watched.judge.close()
    now = watched.now()
    diagnosis = diagnose(find_run([tmp_path]))
    [late] = [one for one in diagnosis.findings if one.rule == "late-rank"]
    assert (now.straggler is not None) == (late.status is Status.FAIL) == (name in LATE)
    if now.straggler is not None:
        assert late.ranks == (now.straggler,)
        told = late.summary if now.straggler_ns == now.ranks[1].late_ns else late.problem
        assert f"by {fmt.duration(now.straggler_ns)} " in told
        # Else the share of the tile seems to contradict the delay in the headline.
        exposed = next(one for one in diagnosis.tiles if one.label == "Exposed communication")
        assert exposed.detail.endswith("mean over ranks; rank 1 waits least")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "json"], "--format json works only with --once"),
        ([], "standard output is not a terminal; add --once to print the state"),
    ],
)
def test_what_cannot_be_done_is_said(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["watch", str(run), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_why_a_trace_cannot_be_read_is_said_while_it_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    path = folder / "trace.rank00000.json"
    good = encode(events(0))
    states: list[Callable[[], object]] = [
        folder.mkdir,
        path.touch,
        lambda: path.write_bytes(good.replace(b'"schema_version":1', b'"schema_version":99')),
        lambda: path.write_bytes(good.replace(b'"schema_version":1', b'"schema_version":99')),
        lambda: path.write_bytes(good.replace(b'"world_size":2', b'"world_size":0')),
        lambda: path.write_bytes(good),
    ]
    steps = iter(states)
    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=lambda _: next(steps)()))
    command.found([folder]).judge.close()
    waits = f"dsprof: waiting for the first trace in {folder}; Ctrl-C quits"
    first, second, third = capsys.readouterr().err.splitlines()
    assert first == waits
    assert second.startswith(f"{waits}; {path}: written in trace version 99, this dsprof reads")
    assert third.startswith(f"{waits}; {path}: line 1: invalid rank 0 for world size 0")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """A terminal of 80 x 24 in which `dsprof watch` runs; call it to press keys and to see."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    server = ["tmux", "-S", str(tmp_path / "tmux")]

    def ask(*arguments: str) -> str:
        done = subprocess.run([*server, *arguments], capture_output=True, text=True, check=True)
        return done.stdout

    traces = tmp_path / "traces"
    traces.mkdir()
    command = f"{sys.executable} -m dsprof watch {traces}"
    ask("new-session", "-d", "-s", "w", "-x", "80", "-y", "24", command)

    def seen(text: str, *keys: str) -> str:
        if keys:
            ask("send-keys", "-t", "w", *keys)
        until = monotonic() + 60
        while text not in (screen := ask("capture-pane", "-p", "-t", "w")):
            assert monotonic() < until, screen
            sleep(0.1)
        return screen

    yield seen
    subprocess.run([*server, "kill-server"], capture_output=True)


def test_a_terminal_shows_a_run_as_it_grows(tmp_path: Path, terminal: Callable[..., str]) -> None:
    terminal("waiting for the first trace")
    files = [tmp_path / "traces" / f"trace.rank{rank:05d}.json" for rank in range(2)]
    ranks = [events(rank, 30, late_ms=12) for rank in range(2)]
    for lines, file in zip(ranks, files, strict=True):
        file.write_bytes(encode(lines[: 2 + 3 * 6]))
    assert "running" in terminal("Step 5")
    for lines, file in zip(ranks, files, strict=True):
        with file.open("ab") as grown:
            grown.write(encode([*lines[2 + 3 * 6 :], TRAILER])[2:])
    screen = terminal("Step 29")
    assert "In recent steps rank 1 delays the others by 12.0 ms per step." in screen
    terminal("UTC, ended")
    terminal("finding")
    first = terminal("Rank 1 delays", "f")
    assert all(len(line) <= 80 for line in first.splitlines())


def test_keys_choose_a_rank_and_unfold_a_finding(run: Path) -> None:
    pytest.importorskip("textual")
    from textual.widgets import Static

    from dsprof.live.terminal import WatchApp

    app = WatchApp(Watched([run]))

    async def press() -> tuple[str, str]:
        async with app.run_test(size=(80, 24)) as pilot:

            def shown() -> str:
                return str(app.query_one("#run", Static).content)

            while "after 12 steps" not in shown():
                await pilot.pause(0.1)
            await pilot.press("down")
            chosen = app.chosen.rank
            await pilot.press("q")
            return shown(), str(chosen)

    text, chosen = asyncio.run(press())
    assert "Step 11" in text
    assert chosen == "1"
