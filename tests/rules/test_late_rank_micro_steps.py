"""late-rank: what comes before each forward of accumulated gradients is one cause; times in ms."""

from __future__ import annotations

import msgspec
import pytest

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.steps import Steps
from dsprof.rules.communication.late_rank import LateRank
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import MS, rank_trace, said, span, step, summary, sync

RULE = LateRank()

STEPS = 12


def rank(number: int, *, input_ms: float = 0, loss_ms: float = 0) -> RankTrace:
    """Steps of two micro-steps of 50 ms: input, forward of 5, the loss, a reduction to the end."""
    comm, spans = [], []
    for n in range(STEPS):
        for micro in range(2):
            begin, end = 100 * n + 50 * micro, 100 * n + 50 * (micro + 1)
            forward, backward = begin + input_ms, begin + input_ms + 5 + loss_ms
            spans.append(span("forward", forward, forward + 5, n, micro_step=micro))
            spans.append(span("backward", backward, end, n, micro_step=micro))
            comm.append(sync("all_reduce", backward, end - backward, seq=2 * n + micro + 1, step=n))
    steps = [step(n, 100 * n, 100 * (n + 1), micro_steps=2) for n in range(STEPS)]
    return rank_trace(number, comm=comm, spans=spans, steps=steps)


def test_input_that_is_late_in_each_micro_step_is_the_cause() -> None:
    found = said(RULE, rank(0), rank(1, input_ms=20))
    assert (found.ranks, found.fix) == ((1,), "Speed up its data loading")
    assert "spends 40.0 ms more before its forward passes" in found.cause


def test_of_rank_0_its_further_work_comes_before_its_input() -> None:
    both = rank(0, input_ms=25), rank(1, input_ms=5)
    for ranks in (both, tuple(map(without_forward, both))):
        found = said(RULE, *ranks)
        assert (found.ranks, found.fix) == ((0,), "Find what only rank 0 does between steps")
        assert "logging" in found.action


def test_work_between_forward_and_backward_is_no_input() -> None:
    found = said(RULE, rank(0), rank(1, loss_ms=20))
    assert "spends 40.0 ms more outside forward" in found.cause


def test_late_input_of_micro_steps_is_told_where_no_forward_is_recorded() -> None:
    found = said(RULE, *map(without_forward, (rank(0, input_ms=5), rank(1, input_ms=25))))
    assert "reaches the backwards, or the first collective, of a step 40.0 ms later" in found.cause
    assert found.fix == "Speed up its data loading"


def without_forward(trace: RankTrace) -> RankTrace:
    """A plain loop: its backward does 10 ms of work before it communicates."""
    trace.spans = [
        msgspec.structs.replace(one, start_ns=one.start_ns - 4 * MS)
        for one in trace.spans
        if one.name == "backward"
    ]
    return trace


def before_ms(*spans: tuple[str, float, float], comm: tuple[float, float] | None = None) -> float:
    """Time before forwards of each step of 100 ms."""
    calls = [] if comm is None else [
        sync("all_reduce", 100 * n + comm[0], comm[1] - comm[0], seq=n + 1, step=n)
        for n in range(STEPS)
    ]  # fmt: skip
    made = [span(name, 100 * n + a, 100 * n + b, n) for n in range(STEPS) for name, a, b in spans]
    steps = [step(n, 100 * n, 100 * (n + 1)) for n in range(STEPS)]
    run = summary(*(rank_trace(n, comm=calls, spans=made, steps=steps) for n in range(2)))
    found = run[Arrivals].ranks[0].before_ns
    assert found is not None
    return found / MS / len(run[Steps].measured)


@pytest.mark.parametrize(
    ("spans", "comm", "expected"),
    [
        ([("forward", 10, 50)], None, 10),
        ([("forward", 10, 20), ("forward", 25, 50)], None, 15),
        ([("forward", 10, 20), ("backward", 20, 40), ("forward", 60, 70)], None, 30),
        ([("forward", 10, 20), ("forward", 20, 50)], None, 10),
        ([("step", 10, 50), ("forward", 20, 30)], None, 0),
        ([("forward", 40, 50)], (10, 30), 20),
    ],
    ids=["first", "two", "micro-steps", "one after the other", "closure", "waits"],
)
def test_time_before_forwards(spans, comm, expected) -> None:
    assert before_ms(*spans, comm=comm) == pytest.approx(expected)
