"""The files of a recording without end, when others touch them or limit them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from dsprof.trace.reader import read_trace
from dsprof.trace.rolling.capture import Captured
from dsprof.trace.run import find_run
from tests.factories import month
from tests.factories.month import FastMotion

BUDGET_BYTES = 2_000_000
STEPS = 6000


def test_files_stay_below_the_limit_of_the_process(tmp_path: Path) -> None:
    program = """
import resource, sys
from pathlib import Path
from tests.factories.month import FastMotion
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
for start in range(2):
    run = FastMotion(Path(sys.argv[1]), 8_000_000, start=start)
    with run.running():
        run.train(1000)
"""
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True)
    run = find_run([tmp_path])
    for epoch in run.epochs:
        trace = read_trace(epoch.files[0])
        assert trace.trailer is not None
        assert (trace.trailer.disk_error, trace.trailer.lost_steps) == ("", 0)
        hours = [one for one in trace.rollups.values() if one.length_s == 3600]
        assert sum(one.steps for one in hours) == 1000
    assert [epoch.files[0].parent.name for epoch in run.epochs[:-1]] == [
        "trace.rank00000.earlier.zip"
    ]


def test_a_rank_whose_folder_was_removed_says_so_once(tmp_path: Path) -> None:
    run = FastMotion(tmp_path / "out", BUDGET_BYTES)
    said: list[str] = []
    run.writer._source.warn = said.append
    with run.running():
        run.train(50)
        run.wait_for_tails()
        shutil.rmtree(tmp_path / "out")
        run.train(200)
    assert run.writer.error is None
    (one,) = said
    lost = "trace.rank00000.json was removed, so the recording of rank 0 is lost."
    assert one.endswith(f"{lost} Leave its folder in place until the job ends")


def test_a_rank_whose_trace_was_cut_says_so_once(tmp_path: Path) -> None:
    run = FastMotion(tmp_path, BUDGET_BYTES)
    said: list[str] = []
    run.writer._source.warn = said.append
    with run.running():
        run.train(50)
        run.wait_for_writer()  # what it wrote behind the cut would fill the file again
        os.truncate(tmp_path / "trace.rank00000.json", 10)
        run.train(200)
    (one,) = said
    assert "was cut by another program, so the recording of rank 0 is lost" in one


def test_a_folder_that_was_moved_keeps_its_recording(tmp_path: Path) -> None:
    """Its name may be that of the folder of another job by then."""
    here, moved = tmp_path / "out", tmp_path / "moved"
    run = FastMotion(here, BUDGET_BYTES)
    with run.running():
        run.train(50)
        run.wait_for_tails()
        here.rename(moved)
        other = FastMotion(here, BUDGET_BYTES, start=1)
        with other.running():
            other.train(50)
        files = {path.name: path.read_bytes() for path in here.iterdir()}
        run.train(STEPS)
        run.writer.wanted.append(Captured("moved", STEPS - 10, 4))
        run.train(20)
    assert run.writer.error is None
    assert {path.name: path.read_bytes() for path in here.iterdir()} == files
    assert len([*moved.iterdir()]) == len(files)
    kept = read_trace(moved / "trace.rank00000.json").kept
    assert {*range(STEPS - 10, STEPS - 6)} <= kept.keys()
    assert min(kept) < 12  # from before it was moved


def test_files_show_that_they_are_in_use(tmp_path: Path) -> None:
    """In a temporary folder, those not written for days are removed."""
    run = FastMotion(tmp_path, 100_000_000)
    with run.running():
        run.train(50)
        run.wait_for_tails()
        for path in tmp_path.iterdir():
            os.utime(path, (0, 0))
        run.train(3700 * 10**9 // month.STEP_NS)
        run.wait_for_writer()
        assert [path.name for path in tmp_path.iterdir() if path.stat().st_mtime == 0] == []
