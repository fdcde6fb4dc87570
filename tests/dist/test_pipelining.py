"""Stages and transfers of torch's pipelining, against what a schedule has to do."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dsprof.trace.reader import read_trace
from tests.dist.launch import PROGRAMS, launch
from tests.dist.programs.pipeline_stages import MICRO_BATCHES, STAGES, WIDTHS

pytestmark = [pytest.mark.dist, pytest.mark.long]

ROWS = 8 // MICRO_BATCHES


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipelining")
    launch(PROGRAMS / "pipeline_stages.py", args=[folder], imported="compiler").check()
    return folder


each_schedule = pytest.mark.parametrize(
    ("schedule", "stages"), [(kind.__name__, count) for kind, count in STAGES.items()]
)


@each_schedule
def test_transfers_say_what_they_carry(run: Path, schedule: str, stages: int) -> None:
    last = 2 * stages - 1
    for path in (run / schedule).glob("*.json"):
        trace = read_trace(path)
        due = Counter[tuple[str, str, int]]()
        for stage in range(trace.rank, 2 * stages, 2):
            before, after = (4 * ROWS * WIDTHS[edge] for edge in (stage, stage + 1))
            if stage > 0:
                due["recv", f"activation to stage {stage}", before] = MICRO_BATCHES
                due["send", f"gradient from stage {stage}", before] = MICRO_BATCHES
            if stage < last:
                due["send", f"activation from stage {stage}", after] = MICRO_BATCHES
                due["recv", f"gradient to stage {stage}", after] = MICRO_BATCHES
        table, seen = trace.collectives, Counter[tuple[str, str, int]]()
        for op, text, nbytes in zip(table.op, table.requested, table.nbytes, strict=True):
            if table.words[text]:
                direction = " from " if table.words[op] == "send" else " to "
                (what,) = (each for each in table.words[text].split(", ") if direction in each)
                seen[table.words[op], what, int(nbytes)] += 1
        assert seen == due


@each_schedule
def test_phases_have_stage_and_micro_batch(run: Path, schedule: str, stages: int) -> None:
    for path in (run / schedule).glob("*.json"):
        trace = read_trace(path)
        seen = Counter((span.name, span.stage, span.micro_step) for span in trace.spans)
        assert seen == Counter(
            (name, stage, micro)
            for name in ("forward", "backward")
            for stage in range(trace.rank, 2 * stages, 2)
            for micro in range(MICRO_BATCHES)
        )


@each_schedule
def test_the_world_is_a_pipeline_if_stages_use_it(run: Path, schedule: str, stages: int) -> None:
    for path in (run / schedule).glob("*.json"):
        assert [group.role for group in read_trace(path).groups.values()] == ["pipeline"]
