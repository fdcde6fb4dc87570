"""slow-start: how long the start took, and who waited for whom; times in ms."""

from __future__ import annotations

import pytest

from dsprof.findings.finding import Status
from dsprof.rules.steps.slow_start import SlowStart
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import group, header, rank_trace, said, step, sync

RULE = SlowStart()

LATE = 1_800_000.0


def ranks(late: float = LATE, first: float = 500, **fields: object) -> list[RankTrace]:
    """Three ranks; rank 2 enters the first barrier late, where its recording begins."""
    starts = (0.0, 0.0, late)
    return [
        rank_trace(
            rank,
            3,
            head=header(rank, 3, started_monotonic_ns=round(1e6 * start), **fields),
            comm=[sync("barrier", 0, late - start + 1, seq=1, nbytes=0)],
            steps=[
                step(n, late - start + 10 * n * first, late - start + 10 * (n + 1) * first)
                for n in range(6)
            ],
        )
        for rank, start in enumerate(starts)
    ]


def test_who_waited_for_whom_before_the_first_step_is_told() -> None:
    found = said(RULE, *ranks())
    assert (found.status, found.ranks) == (Status.INFO, (2,))
    assert found.summary == (
        "The first step ended 30.1 min after the recording began; ranks waited up to 30.0 min of "
        "it for rank 2 in barrier 1 of world."
    )
    assert "before barrier 1 of world ahead of the job" in found.action


def test_a_start_that_takes_long_on_all_ranks_names_none() -> None:
    traces = ranks(late=0)
    for trace in traces:
        trace.steps[0] = step(0, 0, LATE)
    found = said(RULE, *traces)
    assert (found.status, found.ranks) == (Status.INFO, ())
    assert found.summary == "The first step ended 30.0 min after the recording began."


def test_without_a_common_clock_it_is_unknown_who_waited() -> None:
    one, *others = ranks()
    two = [
        rank_trace(2, 3, head=header(2, 3, host="node-b", boot_id="boot-b", started_epoch_ns=1),
                   comm=[], steps=others[1].steps)
    ]  # fmt: skip
    found = said(RULE, one, others[0], *two)
    assert found.ranks == ()
    assert "unknown who waited for whom" in found.cause


@pytest.mark.parametrize(
    "traces", [ranks(late=50_000), ranks(late=300_000, first=6_000)], ids=["short", "long steps"]
)
def test_a_short_start_and_one_of_long_steps_pass(traces: list[RankTrace]) -> None:
    assert said(RULE, *traces).status is Status.PASS


def test_without_the_first_step_it_is_unknown() -> None:
    first, *others = ranks()
    del first.steps[0]
    assert said(RULE, first, *others).status is Status.UNKNOWN


def test_ranks_merge_in_any_order() -> None:
    assert said(RULE, *ranks()) == said(RULE, *ranks()[::-1])


def test_of_many_late_ranks_the_latest_are_named() -> None:
    """Rank 0 comes first, 20 others half an hour later: memory is kept of 16."""
    late = [
        rank_trace(
            rank,
            21,
            head=header(rank, 21, started_monotonic_ns=round(1e6 * LATE) * (rank > 0)),
            groups={1: group(21)},
            comm=[sync("barrier", 0, 1 if rank else LATE, seq=1, nbytes=0)],
            steps=[step(n, LATE * (rank == 0) + 500 * n, LATE * (rank == 0) + 500 * (n + 1))
                   for n in range(6)],
        )
        for rank in range(21)
    ]  # fmt: skip
    found = said(RULE, *late)
    assert found.ranks == tuple(range(5, 21))
    assert "for ranks 5-20 and others in barrier 1 of world." in found.summary
    assert found == said(RULE, *late[::-1])
