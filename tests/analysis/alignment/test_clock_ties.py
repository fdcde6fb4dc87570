"""Hosts whose collectives run on devices: the true offset lies within the printed bound."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.alignment.clock_ties import Bounds, Seen, bounds, joined, renumbered, tie
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


def seen(*rows: tuple[int, ...]) -> Seen:
    """Collectives by number, arrival, earliest and latest end, and shortest call."""
    return Seen(*np.array(rows, np.int64).reshape(-1, 5).T)


def columns(found: Seen | Bounds) -> list[list[int]]:
    names = found.__slots__ if isinstance(found, Seen) else found._fields
    return [getattr(found, name).tolist() for name in names]


def test_ranks_of_a_host_arrive_with_the_last_and_end_with_the_first():
    one, other = seen((3, 10, 20, 25, 9)), seen((1, 5, 8, 9, 3), (3, 12, 22, 24, 7))
    assert columns(joined([one, other])) == [[1, 3], [5, 12], [8, 20], [9, 24], [3, 7]]
    assert len(joined([seen()])) == 0


def test_a_collective_bounds_the_offset_by_its_arrivals_and_closer_by_its_ends():
    here, there = seen((0, 100, 130, 150, 8)), seen((0, 1100, 1135, 1160, 9))
    found = bounds(here, there, np.array([8]))
    assert columns(found) == [[1160], [-1060], [-950], [-1038], [-977]]


def alike(count: int, *, apart: int = 100, ends: tuple[int, int] = (-1038, -977)) -> Bounds:
    full = (np.full(count, one, np.int64) for one in (-1060, -950, *ends))
    return Bounds(apart * np.arange(count), *full)


@pytest.mark.parametrize(
    ("found", "offset", "bound"),
    [
        (alike(1), -1005, 55),
        (alike(14), -1005, 55),  # too few ends to believe them
        (alike(15), -1008, 31),
        (alike(15, ends=(-950, -940)), -950, 0),
        (alike(15, ends=(-949, -940)), -1005, 55),  # they contradict the arrivals
    ],
)
def test_the_middle_of_what_is_possible_is_taken(found, offset, bound):
    tied = tie(found)
    assert set(tied.offset.tolist()) == {offset}
    assert tied.bound_ns == bound


@pytest.mark.parametrize(("count", "offset"), [(99, -1058), (100, -1005)])
def test_one_bound_of_a_hundred_is_not_believed(count, offset):
    found = alike(count, ends=(-10_000, 10_000))
    found.high[40] = -1055
    assert set(tie(found).offset.tolist()) == {offset}
    found = alike(count, ends=(-10_000, 10_000))
    found.low[40], expected = -955, (-955 - 950) // 2
    assert set(tie(found).offset.tolist()) == {expected if count < 100 else offset}


def test_bounds_widen_by_one_in_ten_thousand_and_knots_follow_the_drift():
    still = Bounds(np.array([0, 10**6]), *(np.array([at, at]) for at in (-10, 10, -9, 9)))
    assert tie(still).bound_ns == 10 + 50  # in the middle between the two
    moved = still._replace(low=np.array([-10, 90]), high=np.array([10, 110]))
    tied = tie(moved)
    assert (len(tied.at), tied.at[0], tied.at[-1]) == (17, 0, 10**6)
    assert (tied.offset[0], tied.offset[-1]) == (0, 100)


def numbered(*times: int, first: int = 0) -> Seen:
    return seen(*((first + n, at - 5, at, at, 5) for n, at in enumerate(times)))


def test_windows_are_matched_where_the_times_between_their_ends_fit():
    times = [7 * n + n * n * n % 31 for n in range(40)]
    found = renumbered(numbered(*(at + 10**6 for at in times[5:30])), numbered(*times))
    assert found is not None
    assert found.seq.tolist() == list(range(5, 30))
    assert renumbered(numbered(*times[5:30], first=40), numbered(*times, first=-30)) is None
    assert renumbered(numbered(*times[:14]), numbered(*times)) is None, "too few"
    assert renumbered(numbered(*range(25)), numbered(*range(40))) is None, "all fit alike"
