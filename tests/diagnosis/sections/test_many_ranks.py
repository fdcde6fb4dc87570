"""What a diagnosis holds of very many ranks."""

from __future__ import annotations

import pytest

from dsprof.diagnosis.build import diagnosis_of
from dsprof.diagnosis.model import Diagnosis
from dsprof.reports.html.heat_map import heat_map
from dsprof.trace.schema import MemorySample
from tests.factories.trace import header, ns, rank_trace, step, summary, sync

HOST_RANKS = 8


def diagnosis(ranks: int) -> Diagnosis:
    """Hosts of eight ranks, with two steps and two memory samples each; rank 77 holds most."""
    return diagnosis_of(
        summary(
            *(
                rank_trace(
                    rank,
                    ranks,
                    steps=[step(n, 100 * n, 100 * n + 100) for n in range(4)],
                    memory=[
                        MemorySample("step", ns(100 * n), n, rss_bytes=10**9 + (rank == 77))
                        for n in range(2)
                    ],
                    head=header(rank, ranks, host=f"node{rank // HOST_RANKS}"),
                )
                for rank in range(ranks)
            )
        ),
        {},
    )


@pytest.fixture(scope="module")
def large() -> Diagnosis:
    return diagnosis(600)


def test_memory_is_of_the_ranks_that_stand_out(large: Diagnosis) -> None:
    assert len(large.memory) <= 16
    assert 77 in [row.rank for row in large.memory]
    assert len(large.run.ranks) == 600
    assert len(large.run.source) == 256


def test_rows_of_the_map_are_whole_hosts(large: Diagnosis) -> None:
    found = large.step_map
    assert found.ranks[:2] == [(0, 15), (16, 31)]
    assert found.row_hosts == 2
    drawn = heat_map(found)
    assert drawn is not None
    assert "A row is 2 hosts, and" in drawn.sentence


def test_the_waits_are_of_ranks_that_wait_least_and_longest() -> None:
    """Rank 90 arrives last, and waits least; rank 80 waits longest."""
    waits_ms = dict.fromkeys(range(100), 20.0) | {90: 1.0, 80: 40.0}
    found = diagnosis_of(
        summary(
            *(
                rank_trace(
                    rank,
                    100,
                    steps=[step(n, 100 * n, 100 * n + 100) for n in range(4)],
                    comm=[
                        sync("all_reduce", 100 * n + 90 - ms, ms, seq=n, step=n) for n in range(4)
                    ],
                )
                for rank, ms in waits_ms.items()
            )
        ),
        {},
    ).waits
    assert len(found.ranks) == 64
    assert {80, 90} <= set(found.ranks)
    assert found.ranks == sorted(found.ranks)
    assert found.left_out_ranks == 36


def test_few_ranks_are_all_there() -> None:
    few = diagnosis(16)
    assert [row.rank for row in few.memory] == list(range(16))
    assert few.step_map.ranks[:2] == [(0, 0), (1, 1)]
    assert few.step_map.row_hosts == 0


def test_without_steps_there_are_no_waits_to_show() -> None:
    found = diagnosis_of(summary(rank_trace(0, 2), rank_trace(1, 2)), {}).waits
    assert (found.ranks, found.left_out_ranks) == ([], 0)
