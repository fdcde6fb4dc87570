"""What a run that is stuck does if it is asked to: dump more, or end with a code of its own."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from dsprof.recording.watchdog.thread import EXIT_CODE
from dsprof.trace.dumps.hang_dump import dump_path, read_dump
from dsprof.trace.reader import read_trace
from dsprof.trace.schema import FILE_PATTERN
from tests.dist.launch import PROGRAMS, Result, launch

pytestmark = [pytest.mark.dist]

_HAS_PY_SPY = shutil.which("py-spy") or Path(sys.executable).with_name("py-spy").exists()


def run(folder: Path, until: str, on_hang: str, restarts: int = 0) -> Result:
    env = {
        "DSPROF": "1",
        "DSPROF_OUT": str(folder),
        "DSPROF_HANG_AFTER": "3",
        "DSPROF_ON_HANG": on_hang,
    }
    if restarts:
        env["PET_MAX_RESTARTS"] = str(restarts)
        # Else gloo reads the addresses of the first attempt in the second.
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    return launch(PROGRAMS / "hangs_once.py", args=[until], env=env)


def test_a_stuck_run_ends_with_an_exit_code_of_its_own(tmp_path: Path) -> None:
    result = run(tmp_path, "restarted", "abort")
    assert result.returncode != 0
    assert f"exitcode  : {EXIT_CODE}" in result.output
    assert "dsprof: Rank 1 never entered all_reduce 7 of group world" in result.output
    assert "hangs_once.py" in result.output


def test_a_launcher_restarts_it_and_both_attempts_are_kept(tmp_path: Path) -> None:
    result = run(tmp_path, "restarted", "abort", restarts=1).check()
    assert "never entered all_reduce 7" in result.output
    traces = [read_trace(path) for path in sorted(tmp_path.glob(FILE_PATTERN))]
    attempts: dict[str, list[bool]] = {}
    for trace in traces:
        attempts.setdefault(trace.header.run_key, []).append(trace.trailer is not None)
    assert sorted(attempts.values()) == [[False, False], [True, True]]


def test_a_store_that_does_not_answer_is_named(tmp_path: Path) -> None:
    result = run(tmp_path, "store", "abort")
    assert f"exitcode  : {EXIT_CODE}" in result.output
    said = result.output[result.output.index("dsprof: ") :].partition("\n")[0]
    assert re.search(r"wait(s|ing)? .*for the store at \S+:\d+, which does not answer", said)


@pytest.mark.skipif(not _HAS_PY_SPY, reason="py-spy is not installed")
def test_stacks_in_cpp_are_in_the_dump_of_who_waits(tmp_path: Path) -> None:
    run(tmp_path, "dumped", "dump").check()
    found = read_dump(dump_path(tmp_path, 0))
    assert "hangs_once.py" in found.native_stacks
    assert "c10d::Work::wait" in found.native_stacks
