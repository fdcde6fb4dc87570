from __future__ import annotations

from dsprof.analysis.aggregates.streams import Streams
from tests.factories.device import busy, rank
from tests.factories.kineto import kernel
from tests.factories.trace import MS, rank_trace, summary

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def test_communication_on_a_stream_of_its_own_is_not_shared():
    found = summary(busy(comm=20, world_size=1))[Streams]
    assert (found.communication_ns, found.shared_ns) == (2 * 20 * MS, 0)  # of the measured steps
    assert found.shared_share == 0


def test_communication_on_the_stream_that_computes_is_shared():
    events = [
        kernel("gemm", 0, 60, stream=7),
        kernel("memset_like", 61, 1, stream=20),
        kernel(NCCL, 70, 30, stream=7),
        kernel(NCCL, 70, 10, stream=20),
    ]
    found = summary(rank(events, world_size=1))[Streams]
    assert found == Streams(40 * MS, 30 * MS, 2)
    assert found.shared_share == 0.75


def test_without_a_device_there_are_none():
    assert summary(rank_trace())[Streams] == Streams()


def test_merging_in_any_grouping_is_the_same():
    one, two, three = (Streams(10 * n, n, n) for n in range(3))
    assert one.merge(two).merge(three) == one.merge(two.merge(three)) == Streams(30, 3, 2)
