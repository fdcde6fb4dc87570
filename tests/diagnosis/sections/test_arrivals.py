from __future__ import annotations

from dsprof.diagnosis.sections.communication import arrivals
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import MS, rank_trace, step, summary, sync, zero_rank


def test_each_rank_says_how_often_it_was_last_and_what_that_cost_a_step():
    """Rank 1 comes 45 ms later to the one reduction of each of 6 steps, of which 4 are measured."""
    made = arrivals(summary(zero_rank(0, comm_ms=50), zero_rank(1, comm_ms=5)))
    first, second = made.rows
    assert (first.rank, first.last, first.collectives) == (1, 4, 4)
    assert (first.caused_ns, first.waited_ns, first.transfer_ns) == (45 * MS, 0, 5 * MS)
    assert (second.last, second.waited_ns, second.transfer_ns) == (0, 45 * MS, 5 * MS)
    assert made.last_ranks == {str(step): 1 for step in range(6)}


def test_steps_that_a_rank_did_not_record_are_no_steps_without_waits():
    whole, part = (
        arrivals(summary(zero_rank(0, steps=60, comm_ms=50), zero_rank(1, steps=steps))).rows
        for steps in (60, 30)
    )
    assert [row.collectives for row in (*whole, *part)] == [58, 58, 28, 28]
    times = [[(row.rank, row.caused_ns, row.waited_ns, row.transfer_ns) for row in rows]
             for rows in (whole, part)]  # fmt: skip
    assert times[0] == times[1] == [(1, 45 * MS, 0, 5 * MS), (0, 0, 45 * MS, 5 * MS)]


def test_a_record_without_steps_is_taken_whole():
    calls = [[sync("all_reduce", at, 90 - at, seq=1)] for at in (10, 60)]
    made = arrivals(summary(*(rank_trace(n, comm=comm) for n, comm in enumerate(calls))))
    assert (made.rows[0].rank, made.rows[0].caused_ns, made.last_ranks) == (1, 50 * MS, {})


def test_nothing_to_match_is_no_row():
    made = arrivals(summary(rank_trace()))
    assert (made.rows, made.last_ranks, made.left_out_ranks) == ([], {}, 0)


def test_the_rank_that_others_wait_for_most_leads_and_many_are_cut():
    ranks = [zero_rank(n, 70, comm_ms=50 if n != 66 else 5, steps=3) for n in range(70)]
    made = arrivals(summary(*ranks))
    assert (made.rows[0].rank, len(made.rows), made.left_out_ranks) == (66, 64, 6)
    assert (len(made.pairs.ranks), 66 in made.pairs.ranks) == (24, True)


def test_pairs_say_for_whom_each_rank_waited():
    ranks = [zero_rank(n, 3, comm_ms=comm_ms) for n, comm_ms in enumerate((50, 5, 30))]
    pairs = arrivals(summary(*ranks)).pairs
    assert pairs.ranks == [0, 1, 2]
    assert pairs.waited_ns == [[0, 45 * MS, 0], [0, 0, 0], [0, 25 * MS, 0]]


def test_exposed_time_is_said_to_be_waiting_or_transfer() -> None:
    late = arrivals(summary(zero_rank(0, comm_ms=50), zero_rank(1, comm_ms=5)))
    assert late.attribution == (
        "Not the network: 18 % of all exposed communication is transfer, "
        "82 % is waiting, mostly for rank 1."
    )
    later = arrivals(summary(zero_rank(0, comm_ms=50), zero_rank(1, comm_ms=15)))
    assert later.attribution == (
        "46 % of all exposed communication is transfer (the network), "
        "54 % is waiting, mostly for rank 1."
    )
    latest = arrivals(summary(zero_rank(0, comm_ms=50), zero_rank(1, comm_ms=25)))
    assert latest.attribution.endswith("33 % is waiting, mostly for rank 1.")
    even = arrivals(summary(zero_rank(0, comm_ms=50), zero_rank(1, comm_ms=50)))
    assert even.attribution == (
        "100 % of all exposed communication is transfer (the network), "
        "0 % is waiting for late ranks."
    )
    assert not arrivals(summary(zero_rank(0), rank_trace(1))).attribution


def test_no_rank_is_named_where_two_cause_about_half_of_the_waiting_each() -> None:
    def turns(rank: int, late_ms: float) -> RankTrace:
        shifts = [late_ms * ((n + rank) % 2) for n in range(6)]
        calls = [
            sync("all_reduce", 100 * n + shift, 90 - shift, seq=n, step=n)
            for n, shift in enumerate(shifts)
        ]
        return rank_trace(
            rank, comm=calls, steps=[step(n, 100 * n, 100 * n + 100) for n in range(6)]
        )

    made = arrivals(summary(turns(0, 70), turns(1, 80)))
    assert made.attribution.endswith(" is waiting for late ranks.")
    assert [row.caused_ns for row in made.rows] == [40 * MS, 35 * MS]
