"""A long run takes no more memory than a short one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dsprof.trace.reader import read_trace
from dsprof.trace.schema import FILE_PATTERN
from tests.dist.launch import PROGRAMS, environment

BOUND_MIB = 64

pytestmark = [pytest.mark.long]


@pytest.mark.parametrize(("waits", "count"), [("waited", 1_000_000), ("dropped", 200_000)])
def test_a_million_collectives_leave_memory_as_it_was(
    tmp_path: Path, waits: str, count: int
) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAMS / "growth.py", waits, str(count), tmp_path],
        capture_output=True,
        text=True,
        env=environment({}),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["peak_mib"] < BOUND_MIB
    [file] = tmp_path.glob(FILE_PATTERN)
    trace = read_trace(file)
    assert trace.trailer is not None
    counted = sum(row.calls for part in trace.counters for row in part.rows)
    seen = len(trace.collectives) + counted + trace.trailer.dropped
    assert seen == json.loads(done.stdout)["collectives"] > count
