from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.alignment.clocks import Alignment
from dsprof.analysis.run.transfer_speed import Path, transfers
from dsprof.analysis.summarise import summarise_traces
from dsprof.analysis.summary import RankClock
from tests.factories.trace import MS, group, header, issued, ns, rank_trace, sync

MIB = 1 << 20
ALL = Path("all_reduce", "world", 2, 1, "1-4 MiB")


def rank(number, *took, late=0.0, nbytes=2 * MIB, op="all_reduce", **fields):
    """Collective k begins at 100 k ms, `late` ms after that here, and takes `took[k]` from then."""
    comm = [
        sync(op, 100 * k + late, ms, seq=k + 1, step=k, nbytes=nbytes) for k, ms in enumerate(took)
    ]
    return rank_trace(number, comm=comm, **fields)


def found(*traces, steps=None):
    clocks = {trace.rank: RankClock() for trace in traces}
    summary = summarise_traces(traces, Alignment(clocks, "given"), [Arrivals])
    return transfers(summary[Arrivals], steps)


def test_waiting_for_a_late_rank_is_no_transfer():
    (row,) = found(rank(0, 60, 60, 60), rank(1, 10, 10, 10, late=50))
    assert (row.path, row.calls, row.nbytes, row.time_ns) == (ALL, 3, 2 * MIB, 10 * MS)
    assert row.algbw == pytest.approx(2 * MIB / 0.010)
    assert row.busbw == row.algbw  # 2 (n-1)/n is 1 of two ranks


@pytest.mark.parametrize(("begin", "speeds"), [(50, 0), (-5, 1)])
def test_the_end_must_be_known_of_each_rank_that_may_be_the_last(begin, speeds):
    """Rank 1 sees only after 100 ms that the call is done, on which rank 0 waits for 60 ms."""
    call = issued("all_reduce", begin, begin + 100, seq=1, step=0, pending_ns=ns(begin))
    assert len(found(rank(0, 60), rank_trace(1, comm=[call]))) == speeds


def test_the_links_of_two_ranks_carry_half_of_what_they_gather():
    (row,) = found(*(rank(number, 10, op="all_gather") for number in range(2)))
    assert row.busbw == row.algbw / 2


def test_a_group_of_all_ranks_is_named_by_its_role_as_in_other_tables():
    (row,) = found(*(rank(n, 10, groups={1: group(2, role="data")}) for n in range(2)))
    assert row.path.group == "data parallel"


def test_the_median_call_speaks_and_not_the_mean():
    (row,) = found(rank(0, 10, 10, 90), rank(1, 10, 10, 90))
    assert row.time_ns == 10 * MS
    assert row.quick_algbw == pytest.approx(2 * MIB / 0.010)


def test_a_quarter_of_the_calls_reach_the_quick_speed():
    took = [40, 20, 40, 40, 10, 40, 20, 40]
    (row,) = found(rank(0, *took), rank(1, *took))
    assert (row.time_ns, row.quick_algbw) == (40 * MS, pytest.approx(2 * MIB / 0.020))


def test_sizes_and_operations_are_rows_of_their_own():
    def both(number):
        small = [sync("all_reduce", 500, 1, seq=8, nbytes=4096)]
        gather = [sync("all_gather_into_tensor", 600, 2, seq=9, nbytes=2 * MIB)]
        large = [sync("all_reduce", 0, 10, seq=1, nbytes=2 * MIB)]
        return rank_trace(number, comm=[*large, *small, *gather])

    rows = found(both(0), both(1))
    assert [(row.path.op, row.path.size_class) for row in rows] == [
        ("all_gather", "1-4 MiB"),
        ("all_reduce", "4-64 KiB"),
        ("all_reduce", "1-4 MiB"),
    ]


def test_a_group_with_a_missing_rank_tells_nothing():
    of_three = [rank(number, 10, 10, world_size=3) for number in (0, 1)]
    assert found(*of_three) == []


def test_hosts_of_the_group_are_counted():
    far = header(1, host="node-b", boot_id="boot-b")
    (row,) = found(rank(0, 10), rank(1, 10, head=far))
    assert row.path.nodes == 2


def test_steps_are_chosen():
    (row,) = found(rank(0, 50, 10, 10), rank(1, 50, 10, 10), steps=[1, 2])
    assert (row.calls, row.time_ns) == (2, 10 * MS)


def test_barriers_and_disturbed_calls_have_no_speed():
    assert found(rank(0, 10, op="barrier"), rank(1, 10, op="barrier")) == []
    busy = [sync("all_reduce", 0, 10, seq=1), sync("broadcast", 5, 10, seq=2, thread=2)]
    assert found(rank_trace(0, comm=busy), rank_trace(1, comm=busy)) == []
