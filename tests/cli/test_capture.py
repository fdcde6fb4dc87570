"""`dsprof capture`: a job that cannot answer is not waited for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from getpass import getuser
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
from msgspec.structs import replace

from dsprof.__main__ import main
from dsprof.trace.host_folders import HOSTS
from dsprof.trace.rolling.capture import Captured, agree, ask, asked, held
from dsprof.trace.rolling.earlier import put_away
from dsprof.trace.run import find_run
from tests.factories.month import FastMotion
from tests.factories.stale_folder import stale_folder
from tests.factories.trace import header
from tests.factories.trace_files import write_trace


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder in which one rank has recorded, and ended."""
    rank = FastMotion(tmp_path, 10**6)
    with rank.running():
        rank.train(20)
    return tmp_path


def refusal(job: Path, capsys: pytest.CaptureFixture[str]) -> str:
    with patch("dsprof.cli.capture.time.sleep") as slept:
        assert main(["capture", str(job)]) == 2
    slept.assert_not_called()
    assert not (job / ".capture.json").exists()
    return capsys.readouterr().err


def test_a_job_that_has_ended_is_named_at_once(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    see = f"to see what it kept, run: dsprof report {job}"
    why = "no rank is running; if the job restarts, repeat the command"
    assert refusal(job, capsys) == f"dsprof: {job}: {why}; {see}\n"


def test_a_job_that_shows_no_life_is_named_at_once(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = job / "trace.rank00000.json"
    book.write_bytes(book.read_bytes().removesuffix(b"]\n"))
    for path in job.iterdir():
        os.utime(path, (0, path.stat().st_mtime - 90))
    assert ": no rank has written for 9" in refusal(job, capsys)


@pytest.fixture
def running(job: Path) -> Iterator[Mock]:
    """The job goes on; time passes only in the sleeps of the command."""
    book = job / "trace.rank00000.json"
    book.write_bytes(book.read_bytes().removesuffix(b"]\n"))
    now_s = 0.0

    def wait(duration_s: float) -> None:
        nonlocal now_s
        now_s += duration_s
        at_each_look()

    at_each_look = Mock()
    with patch("dsprof.cli.capture.time", Mock(monotonic=lambda: now_s, sleep=wait)):
        yield at_each_look


def test_a_running_job_is_told_by_its_first_rank_and_not_at_each_look(
    job: Path, running: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    other = FastMotion(job, 10**6, rank=1)
    with other.running():
        other.train(20)
    looked_at = list[Path]()

    def written_at_s(book: Path) -> float:
        looked_at.append(book)
        return time.time() + 30 * len(looked_at)  # it goes on to write

    with patch("dsprof.trace.rolling.parts.written_at_s", written_at_s):
        assert main(["capture", str(job)]) == 2
    assert "no rank answered within 60 s" in capsys.readouterr().err
    assert len(looked_at) == 2  # before the first wait, and after the last


def answered(job: Path, first_step: int = 105) -> None:
    """Answer the request as a rank does."""
    request = asked(job)
    assert request is not None
    agree(job, Captured(request.id, first_step, 20))


@pytest.mark.parametrize("given", ["", "trace.rank00000.json"])
def test_ranks_look_in_the_folder_of_the_run(job: Path, running: Mock, given: str) -> None:
    running.side_effect = lambda: answered(job)
    assert main(["capture", str(job / given)]) == 0


def test_ranks_of_a_host_look_in_the_folder_of_all_hosts(job: Path, running: Mock) -> None:
    host = job / HOSTS / "node0"
    host.mkdir(parents=True)
    for path in job.glob("trace*"):
        path.rename(host / path.name)
    running.side_effect = lambda: answered(job)
    assert main(["capture", str(host)]) == 0


def test_a_job_whose_recordings_are_in_archives_has_ended(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_away(job, 0, 10**6)
    assert ": no rank is running" in refusal(job, capsys)


def test_the_newest_run_of_a_folder_is_asked(job: Path, running: Mock) -> None:
    def answer() -> None:
        request = asked(job)
        assert request is not None
        [mine] = find_run([job]).headers
        another, again = replace(mine, run_key="another"), replace(mine, pid=mine.pid + 1)
        assert [request.is_of(one) for one in (mine, another, again)] == [True, False, False]
        answered(job)

    running.side_effect = answer
    assert main(["capture", str(job)]) == 0


@pytest.mark.parametrize(("first_step", "is_told"), [(4, True), (5, False)])
def test_a_run_in_which_no_step_has_ended_may_have_none(
    job: Path, running: Mock, capsys: pytest.CaptureFixture[str], first_step: int, *, is_told: bool
) -> None:
    running.side_effect = lambda: answered(job, first_step)
    assert main(["capture", str(job)]) == 0
    assert ("No step has ended yet. If the program" in capsys.readouterr().out) == is_told


def test_an_answer_at_the_last_moment_counts(
    job: Path, running: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer() -> None:
        if running.call_count == 300:
            answered(job)

    running.side_effect = answer
    assert main(["capture", str(job)]) == 0
    assert capsys.readouterr().out == (
        "All ranks keep steps 105 to 124 in full detail. They begin in about 10 s, or in 5 steps "
        f"if those take longer. After them, run: dsprof report {job} --steps 105:125\n"
    )


def test_an_answer_is_found_on_a_file_system_that_remembers_what_was_not_there(
    job: Path, running: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    running.side_effect = lambda: answered(job)
    with stale_folder(job):
        assert main(["capture", str(job)]) == 0
    assert running.call_count == 1


def test_a_request_beside_another_is_refused_at_once(
    job: Path, running: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    first = ask(job, 20)
    with held(job, first):
        assert main(["capture", str(job)]) == 2
    running.assert_not_called()
    assert "another request waits for an answer; try again after it" in capsys.readouterr().err
    assert asked(job) == first


def test_a_request_of_which_the_command_was_killed_makes_room(job: Path, running: Mock) -> None:
    code = "import os; os.kill(os.getpid(), 9)"
    program = f"""
import sys
from pathlib import Path
from dsprof.trace.rolling.capture import ask, held
folder = Path(sys.argv[1])
with held(folder, ask(folder, 20)):
    {code}
"""
    assert subprocess.run([sys.executable, "-c", program, job], check=False).returncode == -9
    assert asked(job) is not None
    running.side_effect = lambda: answered(job)
    assert main(["capture", str(job)]) == 0


def test_ctrl_c_withdraws_the_request(job: Path, running: Mock) -> None:
    running.side_effect = KeyboardInterrupt
    with suppress(KeyboardInterrupt):
        main(["capture", str(job)])
    assert running.call_count == 1
    assert asked(job) is None


def test_a_job_of_another_mode_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_trace(tmp_path / "trace.rank00000.json", header(0, 1), steps=3)
    assert "recorded without mode: always" in refusal(tmp_path, capsys)


def test_another_user_than_that_of_the_job_is_refused_at_once(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with patch("dsprof.cli.capture.os.geteuid", return_value=os.geteuid() + 1):
        assert f"the job runs as user {getuser()}, and its ranks" in refusal(job, capsys)
