from __future__ import annotations

import numpy as np
import pytest

from dsprof.analysis.alignment.clocks import (
    SAMPLES_PER_GROUP,
    align,
    clock_samples,
    merged_samples,
    shared_clock,
    unread_samples,
)
from dsprof.trace.lines import Line
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import MS, SECOND, enqueued, group, header, rank_trace, stall, sync

SKEW_NS = 7 * SECOND
"""Node b's monotonic clock reads this much more than node a's."""


def on_node(rank: int, host: str, *calls: Line, **fields) -> RankTrace:
    groups = {n: group(3, id=n, key=f"group {n}") for n in (1, 2)}
    stalls = fields.pop("stalls", [])
    head = header(rank, 3, host=host, boot_id=f"boot-{host}", **fields)
    return rank_trace(rank, 3, head=head, comm=calls, groups=groups, stalls=stalls)


def entered(*arrivals: float, op: str = "all_reduce", **fields) -> list[Line]:
    """Collective k: entered `arrivals[k]` ms after 100 * k ms, left at 100 * (k + 1) ms."""
    return [sync(op, 100 * k + at, 100 - at, seq=k, **fields) for k, at in enumerate(arrivals)]


def test_ranks_of_one_boot_share_a_clock():
    late = header(1, started_monotonic_ns=50 * SECOND + 3 * MS)
    alignment = shared_clock([header(0), late])
    assert alignment is not None
    assert alignment.clocks[1].offset_ns == 3 * MS
    assert (alignment.clocks[1].bound_ns, alignment.bound_ns) == (0, 0)
    assert alignment.method == "one host: shared clock"


@pytest.mark.parametrize("changes", [{"host": "node-b"}, {"boot_id": "boot-b"}])
def test_other_hosts_and_boots_share_none(changes):
    assert shared_clock([header(0), header(1, **changes)]) is None


def test_an_unknown_boot_is_not_taken_for_the_same():
    assert shared_clock([header(0, boot_id=""), header(1, boot_id="")]) is None


def test_collectives_tie_two_hosts_within_the_bound():
    # Both started recording at the same moment; each is late once, by all but 1 ms.
    one = on_node(0, "a", *entered(0, 99))
    other = on_node(1, "b", *entered(99, 0), started_monotonic_ns=50 * SECOND + SKEW_NS)
    alignment = align(map(clock_samples, [one, other]))
    clock = alignment.clocks[1]
    assert alignment.clocks[0].offset_ns == 0
    assert abs(clock.offset_ns) <= clock.bound_ns <= 1.02 * MS
    assert alignment.bound_ns == clock.bound_ns


def test_hosts_are_tied_through_a_third():
    both = (*entered(0), *entered(0, group=2))
    middle = on_node(1, "b", *both, started_monotonic_ns=50 * SECOND + SKEW_NS)
    last = on_node(2, "c", *both[1:], started_monotonic_ns=50 * SECOND + 3 * SKEW_NS)
    alignment = align(map(clock_samples, [on_node(0, "a", *entered(0)), middle, last]))
    assert all(abs(clock.offset_ns) <= clock.bound_ns for clock in alignment.clocks.values())
    near, far = (alignment.clocks[rank].bound_ns for rank in (1, 2))
    assert 0 < near < far <= 2 * near


def test_what_was_not_compared_widens_the_bound():
    def bound_ns(*calls):
        one, other = on_node(0, "a", *entered(0, 99)), on_node(1, "b", *entered(99, 0), *calls)
        return align(map(clock_samples, [one, other])).clocks[1].bound_ns

    later = sync("broadcast", 20_200, 1, seq=9)
    assert bound_ns(later) - bound_ns() == pytest.approx(2 * MS, rel=0.01)


def test_clocks_that_drift_say_so_in_the_bound():
    # On b's clock the second collective lies 30 ms later, which no single offset explains.
    drifted = [sync("all_reduce", 100 * k + 99 + 30 * k, 1, seq=k) for k in range(2)]
    traces = [on_node(0, "a", *entered(99, 99)), on_node(1, "b", *drifted)]
    bound_ns = align(map(clock_samples, traces)).bound_ns
    assert bound_ns is not None
    assert bound_ns > 13 * MS


def test_clocks_that_drift_slowly_are_followed():
    """Ten minutes by turns a second apart; b's clock gains 24 ms meanwhile."""
    turns = [10 + 89 * (k % 2) for k in range(600)]
    a = [sync("all_reduce", 1000 * k + at, 100 - at, seq=k) for k, at in enumerate(turns)]
    b = [sync("all_reduce", 1000.04 * k + 109 - at, at - 9, seq=k) for k, at in enumerate(turns)]
    alignment = align(map(clock_samples, [on_node(0, "a", *a), on_node(1, "b", *b)]))
    assert alignment.bound_ns is not None
    assert alignment.bound_ns < 3 * MS
    written = np.array([600 * 1000.04 * MS], np.int64)
    placed = alignment.clocks[1].on_run(written)
    assert abs(int(placed[0]) - 600 * SECOND) <= alignment.bound_ns


def test_hosts_without_a_common_collective_are_set_by_wall_clocks():
    lonely = on_node(1, "b", started_epoch_ns=header().started_epoch_ns + 5 * MS)
    alignment = align(map(clock_samples, [on_node(0, "a", *entered(0)), lonely]))
    assert alignment.clocks[1].offset_ns == 5 * MS
    assert alignment.bound_ns is None
    assert "wall clocks" in alignment.method
    assert "b" in alignment.method


def test_of_each_host_the_first_rank_keeps_what_all_saw():
    late = {"started_monotonic_ns": 50 * SECOND + SKEW_NS}
    ranks = [
        on_node(0, "a", *entered(0, 99)),
        on_node(1, "a", *entered(99, 0)),
        on_node(2, "b", *entered(98, 1), **late),
    ]
    first, others = [clock_samples(ranks[0])], [*map(clock_samples, ranks[1:])]
    before = dict(first[0].seen)
    merged = merged_samples(first, others)
    assert all(first[0].seen[key] is seen for key, seen in before.items())  # Dask may merge twice
    assert [bool(rank.seen) for rank in merged] == [True, False, True]
    assert align(merged) == align(map(clock_samples, ranks))


def test_ranks_that_no_file_places_in_time_are_set_by_wall_clocks_unread():
    later = header().started_epoch_ns + 5 * MS
    heads = [
        header(0, started_monotonic_ns=0),
        header(1, started_monotonic_ns=0, host="node-b", started_epoch_ns=later),
    ]
    unread = unread_samples(heads)
    assert unread is not None
    alignment = align(unread)
    assert alignment.clocks[1].offset_ns == 5 * MS


def test_one_rank_with_times_must_be_read():
    assert unread_samples([header(0, device="cuda"), header(1, boot_id="")]) is None
    assert unread_samples([header(0, boot_id=""), header(1, boot_id="")]) is not None


def test_ops_that_bind_no_end_are_not_used():
    assert not clock_samples(on_node(0, "a", *entered(0, op="broadcast"))).seen


def test_device_runs_give_no_samples_of_the_host_clock():
    assert not clock_samples(on_node(0, "a", *entered(0), device="cuda")).seen


def test_samples_are_bounded_and_the_same_on_all_ranks():
    arrivals = [0.0] * (3 * SAMPLES_PER_GROUP)
    one, other = (
        clock_samples(on_node(r, "ab"[r], *entered(*arrivals))).seen["group 1"] for r in (0, 1)
    )
    assert one.seq.tolist() == other.seq.tolist()
    assert 0 < len(one) <= 1.2 * SAMPLES_PER_GROUP


def test_a_wait_in_cpp_says_by_when_a_collective_was_over_and_not_when():
    """Copies of DDP's reducer are in it: its end is late by an unknown time."""
    call = enqueued("all_reduce", 5, is_estimated=True)
    held = stall(call, "wait", 30, 40, issued=20, bound_ns=2 * MS)
    seen = clock_samples(on_node(0, "a", call, device="cuda", stalls=[held])).seen["group 1"]
    start = 50 * SECOND
    assert seen.arrive.tolist() == seen.earliest.tolist() == [start + 20 * MS]
    assert seen.latest.tolist() == [start + 42 * MS]
    assert seen.shortest.tolist() == [20 * MS]
