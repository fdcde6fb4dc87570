from __future__ import annotations

import numpy as np
import pytest

from dsprof.analysis.run.lateness import Lateness
from dsprof.analysis.run.votes import CHANCE, Together, together, vote


def late(*waited: list[int], doubt: int = 0) -> Lateness:
    """How long the ranks waited, step by step."""
    matrix = np.array(waited, np.int64).T
    nothing = np.zeros(len(matrix), np.int64)
    return Lateness(
        ranks=tuple(range(len(matrix))),
        steps=np.arange(len(waited)),
        waited_ns=matrix,
        caused_ns=nothing,
        transfer_ns=nothing,
        lasts=nothing,
        met=nothing,
        asked=len(waited),
        compared=len(waited),
        calls=1,
        pairs_ns=None,
        doubt_ns=doubt,
        unsure_ns=nothing,
    )


def test_each_step_votes_for_the_rank_that_waits_far_less():
    # Dixon's r10 of 7 0 8 8 is 7 / 8, and 0.926 is asked for; of 0 100 100 100 it is 1.
    votes = vote(
        late([0, 100, 100, 100], [100, 100, 0, 100], [0, 100, 100, 100], [7, 0, 8, 8], [9] * 4), 1
    )
    assert (votes.votes.tolist(), votes.cast, votes.of, votes.steps) == ([2, 0, 1, 0], 3, 3, 5)
    assert (votes.leader, votes.late) == (0, (0,))
    assert votes.median_ns.tolist() == [201 // 5, 8 // 5, 100 // 5, 0]
    assert votes.least_ns.tolist() == [200 // 5, 7 // 5, 100 // 5, 0]


@pytest.mark.parametrize("others", [(48, 61), (52, 60, 77), (51, 60, 70, 80)])
def test_few_ranks_that_differ_do_not_hide_one_that_waits_less_in_every_step(others):
    votes = vote(late(*[[others[0], 0, *others[1:]]] * 20), 1)
    assert (votes.late, votes.cast, votes.of) == ((1,), 20, 20)
    assert votes.chance < 1e-6


def test_steps_whose_gap_is_below_no_rank_count_against_the_one_that_has_others():
    # Of 50 steps 20 have a gap as wide as the others are apart, each below rank 1.
    votes = vote(late(*[[48, 0, 61]] * 20, *[[0, 9, 18]] * 30), 1)
    assert (votes.late, votes.cast, votes.of, votes.steps) == ((1,), 20, 50, 50)
    assert votes.chance > 0.1


def test_an_outlier_in_some_steps_is_no_less_one_where_gaps_are_wide_in_turn():
    turns = [[0, 30, 50, 40], [50, 0, 30, 40], [50, 30, 0, 40], [50, 40, 30, 0]] * 5
    votes = vote(late(*[[90, 0, 90, 90]] * 8, *turns), 1)
    assert (votes.late, votes.votes.tolist(), votes.of) == ((1,), [0, 8, 0, 0], 8)


@pytest.mark.parametrize("count", [3, 4, 5, 8])
def test_chance_calls_hardly_any_healthy_run_late(count):
    draws = np.random.default_rng(1).standard_t(3, (500, count, 50)) * 10**7
    waits = (draws.max(axis=1, keepdims=True) - draws).astype(np.int64)
    runs = [vote(late(*one.T.tolist()), 2_500_000) for one in waits]
    assert not [one for one in runs if one.stragglers(5_000_000) and one.chance <= CHANCE]


def test_two_ranks_that_are_later_for_a_while_in_turn_may_be_alike():
    """As on a machine that is busy for several steps; each is later in as many either way."""
    first, second = [0, 100], [100, 0]
    in_turn = vote(late(*[*[second] * 7, *[first] * 3] * 8), 1)
    assert in_turn.votes.tolist() == [24, 56]
    assert in_turn.chance > CHANCE
    scattered = np.random.default_rng(1).permutation([0] * 24 + [1] * 56)
    mixed = vote(late(*([first, second][one] for one in scattered)), 1)
    assert mixed.votes.tolist() == [24, 56]
    assert mixed.chance <= CHANCE


def test_chance_calls_few_of_two_ranks_late_where_steps_are_like_those_before():
    draws = np.random.default_rng(1).standard_normal((500, 2, 80)) * 10**7
    for place in range(1, 80):
        draws[:, :, place] += 0.6 * draws[:, :, place - 1]
    waits = (draws.max(axis=1, keepdims=True) - draws).astype(np.int64)
    runs = [vote(late(*one.T.tolist()), 2_500_000) for one in waits]
    named = [one for one in runs if one.stragglers(5_000_000) and one.chance <= CHANCE]
    assert len(named) < 0.05 * len(runs)


@pytest.mark.parametrize(
    ("waited", "median", "least"),
    [([10, 30, 20], 15, 10), ([0, 10, 20, 30], 20, 10), ([5, 1005], 1000, 1000)],
)
def test_a_rank_costs_what_the_others_wait_longer(waited, median, least):
    votes = vote(late(waited), 1)
    assert (votes.median_ns[0], votes.least_ns[0]) == (median, least)


def test_of_ranks_with_as_many_votes_the_one_that_costs_most_leads():
    votes = vote(late([0, 100, 100, 100], [200, 0, 200, 200]), 1)
    assert (votes.leader, votes.late) == (1, ())


def test_steps_that_some_rank_did_not_record_have_no_vote():
    votes = vote(late([0, 100, 100, -1], [0, 100, 100, 100]), 1)
    assert (votes.votes.tolist(), votes.steps, votes.median_ns[0]) == ([1, 0, 0, 0], 1, 100)


PAIR = [100, 0, 100, 100, 0, 100]


def test_two_ranks_are_late_together_with_what_the_others_wait_longer():
    steps = [PAIR, PAIR, [100, 100, 100, 100, 0, 100], [-1, *PAIR[1:]]]
    assert together(late(*steps), 1) == Together((1, 4), 2, 3, 3, 83, (0, 1))  # 100 - 100 / 6
    even = [100] * 6
    assert together(late(PAIR, even, PAIR, even), 1) == Together((1, 4), 2, 2, 4, 50)
    often = [PAIR] * 4 + [even] + [PAIR] * 5  # nine of ten from the first to the last
    assert together(late(*often), 1).stretch == (0, 9)
    assert together(late(*often[1:]), 1).stretch is None


@pytest.mark.parametrize(
    ("waited", "ranks"),
    [
        ([[9, 0, 0, 9]], (1, 2)),
        ([[9, 0, 0]], None),  # more than half
        ([[9, 0, 9, 9]], None),  # one
        ([[9, 0, 0, 9], [9, 9, 9, 9]], (1, 2)),  # in all that are uneven
        ([[9, 0, 0, 9], [9, 0, 9, 9]], None),  # in fewer than two thirds of these
        ([[9] * 4], None),
    ],
)
def test_at_most_half_of_the_ranks_are_late_together_in_most_steps(waited, ranks):
    found = together(late(*waited), 1)
    assert (found and found.ranks) == ranks


@pytest.mark.parametrize(("least_gap", "doubt"), [(100, 0), (1, 100)])
def test_a_gap_as_wide_as_asked_for_is_enough(least_gap, doubt):
    assert together(late(PAIR, doubt=doubt), least_gap) is not None
    assert together(late(PAIR, doubt=doubt and doubt + 1), least_gap + (not doubt)) is None
