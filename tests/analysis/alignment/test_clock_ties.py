"""Hosts whose collectives run on devices: the true offset lies within the printed bound."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.alignment.clocks import Alignment, align, clock_samples
from dsprof.analysis.run.lateness import split_waits
from dsprof.trace.rank_trace import RankTrace
from tests.factories.hosts import TRANSFER_MS, Clock, clock, device_run, profiled_run
from tests.factories.trace import MS, summary

A, B = ("a", clock()), ("b", clock(7000))


def aligned(traces: list[RankTrace]) -> Alignment:
    return align(map(clock_samples, traces))


def error_ms(alignment: Alignment, rank: int, reads: Clock, until: float = 4000) -> float:
    """How far a rank's times come to lie from where they truly were, at most."""
    true = np.linspace(0, until, 50)
    written = np.array([(reads(at) - reads(0)) * MS for at in true], np.int64)
    placed = alignment.clocks[rank].on_run(written) / MS
    return float(np.abs(placed - true).max())


def by_turns(rank: int, k: int) -> float:
    return 30.0 if (k + rank) % 2 else 10.0


def always_late(rank: int, k: int) -> float:
    return 60.0 if rank == 1 else 10.0


@pytest.mark.parametrize("arrive", [by_turns, always_late])
@pytest.mark.parametrize("bound_ms", [0, 5])
def test_the_offset_of_a_host_is_found_within_the_bound(arrive, bound_ms):
    alignment = aligned(device_run([A, B], arrive, bound_ms=bound_ms))
    bound_ns = alignment.clocks[1].bound_ns
    assert bound_ns is not None
    assert error_ms(alignment, 1, B[1]) <= bound_ns / MS
    assert bound_ns < (TRANSFER_MS + 0.5 + bound_ms) * MS
    assert alignment.bound_ns == bound_ns
    assert "aligned by the ends" in alignment.method


def test_clocks_that_run_apart_are_followed():
    fast = clock(7000, drift=4e-5)
    run = device_run([A, ("b", fast)], by_turns, count=600, every=1000)
    alignment = aligned(run)
    bound_ns = alignment.clocks[1].bound_ns
    assert alignment.clocks[1].drift[-1][1] == pytest.approx(-24 * MS, abs=5 * MS)
    assert error_ms(alignment, 1, fast, until=600_000) <= bound_ns / MS
    assert bound_ns < 4 * MS  # of 24 ms that they ran apart


def test_a_step_of_a_clock_is_said_in_the_bound():
    stepped: Clock = lambda at: at + (50 if at > 2000 else 0)  # noqa: E731
    alignment = aligned(device_run([A, ("b", stepped)], by_turns))
    assert error_ms(alignment, 1, stepped) <= alignment.clocks[1].bound_ns / MS
    assert alignment.clocks[1].bound_ns >= 20 * MS


def test_ends_that_some_devices_see_late_move_nothing():
    def ends(chance: Random) -> float:
        return 20.0 if chance.random() < 0.2 else 0.05

    alignment = aligned(device_run([A, B], always_late, ends=ends))
    assert error_ms(alignment, 1, B[1]) <= alignment.clocks[1].bound_ns / MS
    assert alignment.clocks[1].bound_ns < (TRANSFER_MS + 0.5) * MS


def test_ranks_of_a_host_share_its_offset_and_a_host_of_one_rank_has_its_own():
    run = device_run([A, A, B, B, ("c", clock(-300))], lambda rank, k: 10.0 + (rank + k) % 5)
    alignment = aligned(run)
    clocks = alignment.clocks
    assert clocks[0] == clocks[1]
    assert (clocks[2].offset_ns, clocks[2].bound_ns) == (clocks[3].offset_ns, clocks[3].bound_ns)
    for rank, reads in ((3, B[1]), (4, clock(-300))):
        assert error_ms(alignment, rank, reads) <= clocks[rank].bound_ns / MS < TRANSFER_MS + 0.5


def test_a_few_collectives_bound_by_arrivals_alone():
    """Fewer than fifteen: whether ends agree is not asked, and half the wait stays open."""
    alignment = aligned(device_run([A, B], always_late, count=8))
    bound_ns = alignment.clocks[1].bound_ns
    assert error_ms(alignment, 1, B[1]) <= bound_ns / MS
    assert 20 * MS < bound_ns < 40 * MS


def test_a_group_inside_a_host_ties_no_other():
    alignment = aligned(device_run([A, A, B], by_turns, members=[0, 1]))
    assert (alignment.clocks[1].bound_ns, alignment.clocks[2].bound_ns) == (0, None)
    assert alignment.bound_ns is None
    assert "wall clocks of b" in alignment.method


def uneven(rank: int, k: int) -> float:
    """No two collectives are as far apart as two others."""
    return by_turns(rank, k) + Random(k).uniform(0, 30)


@pytest.mark.parametrize("first", [(0, 0), (0, 3), (7, 0)])
def test_profiles_whose_windows_begin_apart_are_tied(first):
    skewed = clock(-40)
    alignment = aligned(profiled_run([A, ("b", skewed)], uneven, first=first))
    clocks = alignment.clocks
    assert clocks[1].bound_ns is not None
    assert clocks[1].bound_ns < (TRANSFER_MS + 0.5) * MS
    # By the rank's own first event: what it wrote at its begin lies there on the run's time line.
    begun = [uneven(rank, at) + 100 * at for rank, at in enumerate(first)]
    apart_ns = clocks[1].offset_ns - clocks[0].offset_ns
    assert abs(apart_ns - (begun[1] - begun[0]) * MS) <= clocks[1].bound_ns


def test_profiles_of_two_hosts_say_who_came_last():
    run = profiled_run(
        [A, ("b", clock(-40))], lambda rank, k: uneven(0, k) + 20 * rank, first=(0, 3)
    )
    (one,) = summary(*run)[Arrivals].matched
    assert (len(one.seq), one.unplaced, one.by_ends) == (37, (), False)
    split = split_waits(one)
    assert split.last.tolist() == [1] * 37
    assert split.waited_ns[0] / MS == pytest.approx(20, abs=TRANSFER_MS + 0.5)


def test_profiles_that_fit_at_several_places_are_not_tied():
    alignment = aligned(profiled_run([A, B], always_late))
    assert alignment.bound_ns is None
    assert "error unknown" in alignment.method
