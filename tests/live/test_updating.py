"""The page of a run that goes on: it says nothing of its end, and follows it to there."""

import os
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from dsprof.__main__ import main
from dsprof.cli import serve
from dsprof.diagnosis.build import diagnose
from dsprof.environment.processes import GONE, ProcessLook
from dsprof.errors import TraceError
from dsprof.findings.finding import Status
from dsprof.live import updating
from dsprof.live.site import Site
from dsprof.live.updating import UpdatingSite
from dsprof.trace import life
from dsprof.trace.lines import LINES
from dsprof.trace.run import find_run, is_growing
from dsprof.trace.schema import Trailer
from tests.browser import EXECUTABLE, chromium
from tests.dist.launch import PROGRAMS, environment
from tests.factories import trace as make
from tests.factories.trace_files import encode
from tests.live.test_following import TRAILER, events


def write(folder: Path, steps: int, *, is_over: bool = False) -> None:
    for rank in range(2):
        lines = events(rank, 30)[: 2 + 3 * steps] + ([TRAILER] if is_over else [])
        cut = len(b"") if is_over else -len(b"\n]\n")
        path = folder / f"trace.rank{rank:05d}.json"
        path.write_bytes(encode(lines)[: cut or None])


def test_a_run_goes_on_while_a_rank_writes(tmp_path: Path) -> None:
    write(tmp_path, 9)
    run = find_run([tmp_path])
    assert is_growing(run)
    long_ago = time.time() - 60
    for path in run.files:
        os.utime(path, (long_ago, long_ago))
    assert not is_growing(run)
    run.headers[1].config = {"mode": "always"}
    (tmp_path / "trace.rank00001.tail0").touch()  # of a rolling recording only parts grow
    assert is_growing(run)
    write(tmp_path, 9, is_over=True)
    assert not is_growing(run)


def test_the_end_of_a_run_that_goes_on_is_not_judged(tmp_path: Path) -> None:
    write(tmp_path, 9)
    found = {
        is_running: diagnose(find_run([tmp_path]), is_running=is_running)
        for is_running in (True, False)
    }
    status = {
        is_running: {one.rule: one.status for one in diagnosis.findings}
        for is_running, diagnosis in found.items()
    }
    assert status[True]["data-quality"] is Status.UNKNOWN
    assert status[False]["data-quality"] is Status.FAIL
    assert found[True].quality.unclean_ranks == []
    assert "still running" in found[True].quality.line
    assert found[True].headline.rule != "data-quality"


def test_the_end_is_judged_where_a_rank_failed_though_the_other_has_just_written(
    tmp_path: Path,
) -> None:
    write(tmp_path, 9)
    end = Trailer(reason="exit", exception="ValueError", exception_ns=400 * make.MS)
    failed = [*events(1, 30)[: 2 + 3 * 9], LINES["trailer"](end, ph="M", pid=1)]
    (tmp_path / "trace.rank00001.json").write_bytes(encode(failed))
    assert is_growing(find_run([tmp_path]))
    found = diagnose(find_run([tmp_path]), is_running=True)
    assert "still running" not in found.quality.line
    assert (found.headline.rule, found.quality.unclean_ranks) == ("data-quality", [0])


def test_a_report_of_a_run_that_goes_on_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, 9)
    main(["report", str(tmp_path), "--format", "text", "-o", "-"])
    assert "9 steps | still running" in capsys.readouterr().out


def test_a_wait_much_longer_than_steps_is_judged_though_its_processes_live(tmp_path: Path) -> None:
    waits = make.hanging("all_reduce", 450, seq=99, step=9)
    for rank in range(2):
        lines = [*events(rank, 9), *([waits] if rank else [])]
        lines.append(LINES["heartbeat"](args=make.heartbeat(30_000, rank, 29_000)))
        content = encode(lines).removesuffix(b"\n]\n")
        (tmp_path / f"trace.rank{rank:05d}.json").write_bytes(content)
    diagnosis = diagnose(find_run([tmp_path]), is_running=True)
    assert not diagnosis.run.is_running
    failed = [one.rule for one in diagnosis.findings if one.status is Status.FAIL]
    assert "stuck-collective" in failed


def test_pages_are_of_the_newest_judgement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updating, "_SHORTEST_REST_S", 0.01)
    write(tmp_path, 9)
    rounds = iter([lambda: write(tmp_path, 20), lambda: write(tmp_path, 30, is_over=True)])

    def load() -> Site:
        run = find_run([tmp_path])
        return Site(run, diagnose(run), was_growing=is_growing(run))

    def reload() -> Site:
        next(rounds)()
        return load()

    site = UpdatingSite(load)
    before = site.page("/steps")
    site._load = reload
    site.follow(Event())  # until the run is over
    assert before != site.page("/steps")
    assert not site.is_growing
    with pytest.raises(StopIteration):
        next(rounds)


def test_what_was_known_stays_when_the_traces_go(tmp_path: Path) -> None:
    write(tmp_path, 9)

    stopped, tries = Event(), Counter[str]()

    def gone() -> Site:
        tries["gone"] += 1
        if tries["gone"] == 3:  # it is not the first failure that ends it
            stopped.set()
        raise TraceError("gone")

    run = find_run([tmp_path])
    site = UpdatingSite(lambda: Site(run, diagnose(run), was_growing=True))
    site._load = gone
    updating_rest, updating._SHORTEST_REST_S = updating._SHORTEST_REST_S, 0.01
    try:
        site.follow(stopped)
    finally:
        updating._SHORTEST_REST_S = updating_rest
    assert tries["gone"] == 3
    assert site.page("/steps")
    assert b"The page is out of date: gone" in page(site)


def page(site: UpdatingSite) -> bytes:
    found = site.page("/")
    assert found is not None
    return found


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_run_that_ends_while_it_is_judged_is_judged_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    """With a killed rank the page does not say that it goes on, but lacks its last steps."""
    monkeypatch.setattr(updating, "_SHORTEST_REST_S", 0.01)
    monkeypatch.setattr(life, "boot_id", lambda: "boot-a")
    monkeypatch.setattr(
        life, "look_at", lambda pid, _: ProcessLook(GONE if is_killed and pid == 101 else "R")
    )
    monkeypatch.setattr(life, "SILENT_S", -1.0)
    write(tmp_path, 9)
    judge = serve.load_run_and_diagnosis

    def slowly(*arguments: Any) -> Any:
        found = judge(*arguments)
        write(tmp_path, 30, is_over=True)
        return found

    monkeypatch.setattr(serve, "load_run_and_diagnosis", slowly)
    serve.ServeCommand().prepare(parser := ArgumentParser())
    arguments = parser.parse_args([str(tmp_path), "--live"])
    site = UpdatingSite(lambda: serve._site(arguments, serve.Reading.of(arguments)))
    assert (b"steps, still running" in page(site)) is not is_killed
    assert b"9 steps" in page(site)
    site.follow(Event())
    assert b"30 steps" in page(site)
    assert b"steps, still running" not in page(site)


def test_whatever_ends_a_judgement_is_on_the_page_until_the_next(tmp_path: Path) -> None:
    write(tmp_path, 9)
    run = find_run([tmp_path])
    rounds = iter([ValueError("<b>"), Site(run, diagnose(run))])
    site = UpdatingSite(lambda: Site(run, diagnose(run), was_growing=True))
    seen = []

    class Rests(Event):
        def wait(self, timeout: float | None = None) -> bool:
            seen.append(page(site))
            return False

    def load() -> Site:
        found = next(rounds)
        if isinstance(found, Exception):
            raise found
        return found

    site._load = load
    site.follow(Rests())
    said = b"The page is out of date: ValueError: &lt;b&gt;"
    assert [said in one for one in [*seen, page(site)]] == [False, True, False]


def test_the_rest_counts_the_processes_that_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 9)
    run = find_run([tmp_path])
    rests_s: list[float] = []

    class Rests(Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            rests_s.append(timeout)
            return len(rests_s) == 2

    site = UpdatingSite(lambda: Site(run, diagnose(run), was_growing=True))
    used_s = count(step=40)
    monkeypatch.setattr(updating, "thread_time", lambda: 0)
    monkeypatch.setattr(updating, "used_by_children_s", lambda: next(used_s))
    site.follow(Rests())
    assert rests_s == [5, 25 * 40]


@pytest.mark.browser
@pytest.mark.long
@pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium is installed")
def test_a_browser_follows_a_real_run(tmp_path: Path) -> None:
    traces, end = tmp_path / "traces", tmp_path / "end"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    train = [*launcher, str(PROGRAMS / "watched.py"), str(traces), str(end)]
    serve = [sys.executable, "-m", "dsprof", "serve", str(traces), "--port", "0", "--live"]
    with ExitStack() as ends:
        training = ends.enter_context(subprocess.Popen(train, env=environment({})))
        ends.callback(end.touch)
        while not any(b'"cat":"step"' in path.read_bytes() for path in traces.glob("trace*")):
            time.sleep(0.2)
        serving = ends.enter_context(subprocess.Popen(serve, stdout=subprocess.PIPE, text=True))
        ends.callback(serving.terminate)
        assert serving.stdout is not None
        page = ends.enter_context(chromium()).open(serving.stdout.readline().strip())
        page.evaluate("document.querySelector('#checks details, details').open = true")
        steps = "Number(document.body.innerText.match(/([0-9,]+) steps/)[1].replace(',', ''))"
        before = page.evaluate(steps)
        assert "Records break off" not in page.evaluate("document.body.innerText")
        page.wait(f"document.readyState == 'complete' && {steps} > {before}", 120)
        assert page.evaluate("document.querySelector('#checks details, details').open")
        assert page.complaints() == []
        end.touch()
        training.wait(60)
