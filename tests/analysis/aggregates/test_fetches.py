from __future__ import annotations

from dsprof.analysis.aggregates.fetches import Fetches, FetchKind, FetchSums
from tests.factories.trace import MS, captured, fetch, rank_trace, step, summary


def test_fetches_are_summed_by_kind_and_phase():
    trace = rank_trace(
        steps=[step(0, 0, 100)],
        fetches=[
            fetch(1, 0, 3, step=0, phase="forward", elements=10),
            fetch(2, 5, 4, step=0, phase="forward", elements=20),
            fetch(3, 9, 1, step=0, phase="backward", elements=40),
            fetch(4, 9, 1, step=-1, phase="forward", elements=80),
            fetch(5, 9, 1, step=0, phase="backward", elements=160, is_recomputation=True),
        ],
    )
    assert summary(trace)[Fetches].rows == {
        FetchKind("", "fetch", "forward", ""): FetchSums(2, 1, 30, 7 * MS),
        FetchKind("", "fetch", "backward", ""): FetchSums(1, 1, 40, 1 * MS),
        FetchKind("", "fetch", "recomputation", ""): FetchSums(1, 1, 160, 1 * MS),
    }


def test_fetches_are_averaged_over_steps_in_detail():
    fetches = [fetch(n, 100 * n, 3, step=n, phase="forward") for n in range(4, 7)]
    trace = captured(window=range(4, 7), steps=10, fetches=fetches)
    assert summary(trace)[Fetches].rows[FetchKind("", "fetch", "forward", "")].rank_steps == 3
