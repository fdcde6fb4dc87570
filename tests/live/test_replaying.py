"""Runs that are judged while they grow: no finding flickers, and the last ones are the report's."""

import shutil
import time
from pathlib import Path

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.trace.run import find_run
from tests.factories.month import FastMotion
from tests.factories.replays import RANKS, RUNS
from tests.factories.trace_files import encode
from tests.live.replaying import CUTS, assert_calm, failed, replayed, withdrawals


def written(name: str) -> dict[str, bytes]:
    return {f"trace.rank{rank:05d}.json": encode(RUNS[name].lines(rank)) for rank in RANKS}


@pytest.mark.parametrize("name", RUNS)
def test_no_finding_is_raised_and_withdrawn_twice(name: str, tmp_path: Path) -> None:
    whole = written(name)
    judgements = list(replayed(whole, tmp_path / "growing", RUNS[name].starts))
    (tmp_path / "whole").mkdir()
    for file, content in whole.items():
        (tmp_path / "whole" / file).write_bytes(content)
    assert_calm(judgements, diagnose(find_run([tmp_path / "whole"])))


def test_judgements_alone_would_flicker(tmp_path: Path) -> None:
    """Else the test above could not fail."""
    judgements = replayed(written("late-in-bouts"), tmp_path / "growing")
    assert withdrawals(map(failed, judgements))["late-rank"] == 2


def test_no_finding_of_a_rolling_recording_is_raised_and_withdrawn_twice(tmp_path: Path) -> None:
    """A real writer records; what it has written by then is judged."""
    folder, judgements = tmp_path / "growing", []
    folder.mkdir()
    run = FastMotion(folder, 1 << 20)
    run.slow = dict.fromkeys(range(1800, 300 * CUTS), 1.5)
    with run.running():
        for _ in range(CUTS):
            run.train(300)
            while run.recorder.outbox.records:
                time.sleep(0.001)
            judgements.append(diagnose(find_run([folder]), is_running=True))
    judgements.append(diagnose(find_run([folder])))
    shutil.copytree(folder, tmp_path / "whole")
    assert_calm(judgements, diagnose(find_run([tmp_path / "whole"])))
    assert "step-time-change" in {one.rule for one in failed(judgements[-1])}
