from __future__ import annotations

from dsprof.analysis.aggregates.point_to_point import PointToPoint, PointToPointKind
from dsprof.analysis.rank.blocked_time import BlockedTime
from tests.factories.trace import MS, captured, rank_trace, step, summary, sync

MIB = 1 << 20


def transfers(*comm, rank=0):
    return rank_trace(rank, steps=[step(0, 0, 100)], comm=comm)


def test_rows_are_by_direction_and_batch():
    comm = [
        sync("send", 1, 2, step=0),
        sync("isend", 5, 1, step=0),
        sync("recv", 9, 3, step=0, coalesced=4),
        sync("all_reduce", 20, 3, step=0),
    ]
    assert summary(transfers(*comm))[PointToPoint].rows == {
        PointToPointKind("send", "gloo", "", False): BlockedTime(2, 2 * MIB, 1, 3 * MS, 3.0 * MS),
        PointToPointKind("recv", "gloo", "", True): BlockedTime(1, MIB, 1, 3 * MS, 3.0 * MS),
    }


def test_none_and_counters_have_no_rows():
    for trace in (rank_trace(), captured(window=range(0), steps=8)):
        assert summary(trace)[PointToPoint].rows == {}


def test_merging_in_any_grouping_is_the_same():
    one, two, three = (
        summary(transfers(sync("recv", 1, ms, step=0), rank=rank))[PointToPoint]
        for rank, ms in enumerate((3, 5, 4))
    )
    assert one.merge(two).merge(three) == one.merge(two.merge(three))
