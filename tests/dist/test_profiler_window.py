"""torch.profiler runs in the steps that were asked for, the same on all ranks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from dsprof.trace.reader import read_trace
from dsprof.trace.run import find_run, read_run
from tests.dist.launch import PROGRAMS, launch

pytestmark = [pytest.mark.dist, pytest.mark.long]


def test_all_ranks_profile_the_steps_that_were_asked_for(tmp_path: Path) -> None:
    variables = {
        "DSPROF": "1",
        "DSPROF_MODE": "always",
        "DSPROF_CAPTURE_PROFILER": "1",
        "DSPROF_OUT": str(tmp_path),
    }
    launch(PROGRAMS / "profiled.py", args=[tmp_path], env=variables, imported="torch").check()
    asked = []
    for rank in range(2):
        file = tmp_path / f"trace.rank{rank:05d}.profile.gz"
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        assert [event["name"] for event in events].count("aten::mul_") == 5
        kept = read_trace(tmp_path / f"trace.rank{rank:05d}.json").kept.values()
        asked.append([one.step for one in kept if one.why == "capture"])
    assert asked[0] == asked[1]
    for trace in read_run(find_run([tmp_path])):
        texts = [note.text for note in trace.notes]
        assert f"torch.profiler ran from step {asked[0][0]:,} on" in texts
        assert [path.rsplit("/", 1)[-1] for path in trace.beside] == [
            f"trace.rank{trace.header.rank:05d}.profile.gz"
        ]
