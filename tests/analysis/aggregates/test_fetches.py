from __future__ import annotations

from dsprof.analysis.aggregates.fetches import Fetches, FetchKind, FetchSums
from tests.factories.trace import MS, captured, fetch, issued, rank_trace, step, summary, sync


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


def test_a_prefetch_waits_in_synchronous_calls_only() -> None:
    calls = [
        sync("all_gather_into_tensor", 5, 3, step=0, fetch=1),
        issued("all_gather_into_tensor", 20, 24, wait=22, waited=24, step=0, fetch=2),
    ]
    fetches = [
        fetch(number, at, 0, kind="prefetch", step=0, phase="backward", module=str(number))
        for number, at in ((1, 5), (2, 20))
    ]
    rows = summary(rank_trace(steps=[step(0, 0, 100)], comm=calls, fetches=fetches))[Fetches].rows
    assert [sums.wait_ns for _, sums in sorted(rows.items())] == [3 * MS, 0]


def test_fetches_are_averaged_over_steps_in_detail():
    fetches = [fetch(n, 100 * n, 3, step=n, phase="forward") for n in range(4, 7)]
    trace = captured(window=range(4, 7), steps=10, fetches=fetches)
    assert summary(trace)[Fetches].rows[FetchKind("", "fetch", "forward", "")].rank_steps == 3
