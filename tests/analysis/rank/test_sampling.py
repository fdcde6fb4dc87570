from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dsprof.analysis.aggregates import AGGREGATES
from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.alignment.clocks import shared_clock
from dsprof.analysis.rank import sampling
from dsprof.analysis.rank.sampling import kept_steps
from dsprof.analysis.rank.steps import evenly_spaced
from dsprof.analysis.summarise import summarise_traces
from dsprof.diagnosis.build import diagnosis_of
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import header, rank_trace, step, sync

STEPS = 600


def long_run(rank: int = 0, count: int = STEPS, **config: int) -> RankTrace:
    """A rank with a collective in each of many steps; every tenth step is twice as long."""
    ends = [100.0 * (number + 1) for number in range(count)]
    return rank_trace(
        rank,
        comm=[sync("all_reduce", end - 60, 10, step=n, seq=n) for n, end in enumerate(ends)],
        steps=[step(n, end - 100, end - (0 if n % 10 == 0 else 50)) for n, end in enumerate(ends)],
        head=header(rank, config=config),
    )


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "STEPS", 256)


@pytest.mark.usefixtures("few")
def test_of_a_long_run_all_ranks_keep_the_same_steps():
    traces = [long_run(rank) for rank in range(2)]
    summary = summarise_traces(traces, shared_clock([t.header for t in traces]), AGGREGATES)
    steps = summary[Steps]
    one, other = (steps.ranks[rank].number.tolist() for rank in range(2))
    assert one == other == steps.numbers
    assert 64 < len(one) <= 128
    assert steps.recorded == STEPS
    diagnosis = diagnosis_of(summary, {})
    assert diagnosis.run.steps == STEPS
    assert any(f"{len(one)} of 600 steps" in note for note in diagnosis.quality.notes)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("count", [200, 1200])
def test_the_means_are_over_the_steps_that_ranks_of_any_length_keep(count):
    """One is killed early, or is alone in going on: it keeps one of fewer, or of more steps."""
    traces = [long_run(0), long_run(1), long_run(2, count)]
    summary = summarise_traces(traces, shared_clock([t.header for t in traces]), AGGREGATES)
    alike = summary[Steps].alike()
    assert len(alike.numbers) > 20
    for number, parts in alike.parts.items():
        assert parts.ranks == sum(number < len(trace.steps) for trace in traces)


@pytest.mark.usefixtures("few")
def test_arrivals_are_of_steps_that_are_kept():
    traces = [long_run(rank) for rank in range(2)]
    summary = summarise_traces(traces, shared_clock([t.header for t in traces]), [Arrivals])
    [matched] = summary[Arrivals].matched
    assert matched.step.tolist() == kept_steps(traces[0]).tolist()


@pytest.mark.usefixtures("few")
def test_no_period_of_the_program_hides_behind_that_of_the_sample():
    kept = kept_steps(long_run())
    assert 0.05 < sum(number % 10 == 0 for number in kept) / len(kept) < 0.15


@pytest.mark.usefixtures("few")
def test_the_few_steps_in_full_detail_are_all_kept():
    kept = kept_steps(long_run(start_step=300, steps=20)).tolist()
    assert set(range(300, 320)) <= set(kept)
    assert len(kept) < 200


def test_a_run_of_some_thousand_steps_is_kept_whole():
    assert kept_steps(long_run()).tolist() == list(range(STEPS))


@pytest.mark.parametrize(
    ("numbers", "spaced"),
    [
        (range(5, 12), [*range(5, 12)]),
        ([3, 4, 5, 8, 12, 13, 16], [4, 8, 12, 16]),
        ([4, 8, 9, 16, 17], [8, 16]),  # 12 is missing
        ([0, 7, 9], [0]),
        ([1001, 1003], []),
    ],
)
def test_steps_at_one_distance_are_those_that_were_kept_by_their_number(
    numbers: Sequence[int], spaced: list[int]
) -> None:
    assert evenly_spaced(np.array(numbers)).tolist() == spaced
