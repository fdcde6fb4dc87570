"""Large runs by pipeline stage and tensor rank."""

from __future__ import annotations

import pytest

from dsprof.diagnosis import role_maps as module
from dsprof.diagnosis.build import diagnosis_of
from dsprof.diagnosis.model import Diagnosis
from dsprof.reports.html.heat_map import heat_map
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import MS, group, rank_trace, span, step, summary, sync

WORLD = 8


def staged(rank: int) -> RankTrace:
    """Four stages of two tensor ranks each; rank 7 computes for 80 ms, the others for 40."""
    busy = 80 if rank == 7 else 40
    tensor = group(WORLD, id=2, key=f"t{rank // 2}", ranks=[rank // 2 * 2, rank // 2 * 2 + 1])
    pipeline = group(WORLD, id=3, key=f"p{rank % 2}", ranks=[*range(rank % 2, WORLD, 2)])
    tensor.role, pipeline.role = "tensor", "pipeline"
    comm, steps, spans = [], [], []
    for n in range(10):
        at = 100 * n
        spans.append(span("forward", at, at + busy, n))
        comm.append(sync("all_reduce", at + busy, 90 - busy, step=n, seq=n))
        steps.append(step(n, at, at + 100))
    groups = {1: group(WORLD), 2: tensor, 3: pipeline}
    return rank_trace(rank, WORLD, comm=comm, steps=steps, spans=spans, groups=groups)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Diagnosis:
    monkeypatch.setattr(module, "ROWS", 4)
    return diagnosis_of(summary(*map(staged, range(WORLD))), {})


def test_a_row_is_the_mean_of_a_stage(large: Diagnosis) -> None:
    stages, tensor = large.role_maps
    assert stages.row_names == [f"pipeline stage {place}" for place in range(4)]
    assert stages.ranks == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [row[0] for row in stages.exposed_ns] == [50 * MS] * 3 + [30 * MS]
    assert tensor.row_names == ["tensor rank 0", "tensor rank 1"]
    assert [row[0] for row in tensor.exposed_ns] == [50 * MS, 40 * MS]


def test_the_drawing_names_stages(large: Diagnosis) -> None:
    drawn = heat_map(large.role_maps[0])
    assert drawn is not None
    assert [lane.text for lane in drawn.lanes] == [*large.role_maps[0].row_names, "step"]
    assert "from pipeline stage 0 to pipeline stage 3, mean over their ranks" in drawn.sentence


def test_a_straggler_is_marked_in_its_row(large: Diagnosis) -> None:
    stages, tensor = (
        {(mark.rank, mark.row, mark.column) for mark in one.marks} for one in large.role_maps
    )
    columns = range(len(large.step_map.steps))
    assert stages == {(7, 3, column) for column in columns}
    assert tensor == {(7, 1, column) for column in columns}


def test_small_runs_have_none() -> None:
    assert diagnosis_of(summary(*map(staged, range(WORLD))), {}).role_maps == []
