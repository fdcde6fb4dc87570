"""What torch's own libraries do with the wire, against what they tell in a run without dsprof."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsprof.analysis.buckets import attach_buckets
from dsprof.trace.reader import read_trace
from dsprof.trace.table import RankTrace
from tests.dist.launch import PROGRAMS, launch

pytestmark = pytest.mark.dist

RANKS = 2


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ddp")
    launch(PROGRAMS / "ddp_buckets.py", args=[folder]).check()
    return folder


def traces(folder: Path) -> list[RankTrace]:
    return [read_trace(path) for path in sorted(folder.glob("*.json"))]


def oracle(folder: Path, rank: int) -> dict[str, Any]:
    return json.loads((folder / f"oracle.rank{rank}.json").read_text())


@pytest.mark.parametrize("scenario", ["plain", "view", "unused", "static"])
def test_ddp_buckets_are_those_that_a_communication_hook_sees(ddp: Path, scenario: str) -> None:
    for trace in traces(ddp / scenario):
        attach_buckets(trace)
        seen = [[flush.step, flush.bucket, flush.nbytes] for flush in trace.flushes]
        told = oracle(ddp, trace.rank)[scenario]
        assert seen == [row[:3] for row in told]
        counts = [flush.parameters for flush in trace.flushes]
        assert all(count in (0, row[3]) for count, row in zip(counts, told, strict=True))
        assert max(row[1] for row in told) > 0, "one bucket alone would show little"
        layout = trace.layouts[-1]
        assert layout.is_rebuilt == (scenario != "unused")
        assert layout.buckets_reduced in (0, len(layout.nbytes))  # DDP's own count


def test_ddp_phases_and_micro_steps(ddp: Path) -> None:
    for trace in traces(ddp / "plain"):
        assert [(step.step, step.micro_steps) for step in trace.steps] == [(n, 2) for n in range(4)]
        spans = [(span.name, span.step, span.micro_step) for span in trace.spans]
        assert spans == [
            row
            for step in range(4)
            for row in [
                *((name, step, micro) for micro in range(2) for name in ("forward", "backward")),
                ("step", step, 1),
            ]
        ]
