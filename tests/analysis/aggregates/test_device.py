from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.communication import Communication
from dsprof.analysis.aggregates.device import Device, KernelSum, RankDevice
from dsprof.analysis.aggregates.overlap import Overlap
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RankClock
from tests.factories import device, kineto
from tests.factories import trace as make
from tests.factories.trace import ns, summary

EVENTS = [
    kineto.kernel(kineto.GEMM, 0, 10),
    kineto.kernel(kineto.GEMM, 5, 10, stream=8),  # two streams compute from 0 to 15
    kineto.collective(12, 8),  # 3 ms behind computation, 5 ms exposed, 1 of them beside a copy
    kineto.copy(19, 6),  # 1 ms beside communication, 5 ms alone
    kineto.copy(34, 1),  # after 9 ms of nothing
]


def measured(events: list, **fields: object) -> RankDevice:
    return Device.collect(device.rank(events, **fields), RankClock()).ranks[0]


def test_parts_by_hand_sum_to_the_span() -> None:
    found = measured(EVENTS)
    assert found.span_ns == ns(35)
    assert found.compute_ns == ns(15)
    assert found.communication_ns == ns(8)
    assert found.exposed_ns == ns(5)
    assert found.copies_ns == ns(6)
    assert found.idle_ns == ns(9)
    assert found.overlap == pytest.approx(3 / 8)


def test_a_step_is_split_in_the_same_way() -> None:
    steps = [kineto.step(1, 0, 16), kineto.step(2, 16, 20)]
    row = summary(device.rank([*steps, *EVENTS], world_size=1))[Steps].ranks[0]
    assert row.compute_ns is not None
    assert row.compute_ns.tolist() == [ns(15), 0]
    assert row.exposed_ns is not None
    assert row.exposed_ns.tolist() == [ns(1), ns(4)]
    assert row.copies_ns is not None
    assert row.copies_ns.tolist() == [0, ns(6)]
    assert row.idle_ns is not None
    assert row.idle_ns.tolist() == [0, ns(10)]


def test_the_total_of_the_steps_adds_up() -> None:
    total = summary(device.busy(hidden=5, world_size=1))[Steps].total
    assert total.idle_ns is not None
    assert total.other_ns == 0
    assert (total.compute_ns, total.exposed_ns) == (2 * ns(60), 2 * ns(15))
    assert total.idle_ns == 2 * ns(25)


def test_overlap_is_of_kernels() -> None:
    overlap = summary(device.busy(hidden=5, world_size=1))[Overlap]
    assert overlap.on_device
    assert overlap.bounds == (pytest.approx(0.25), pytest.approx(0.25))


def test_what_the_common_test_misses_stands_beside() -> None:
    custom = "void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*)"
    found = measured([kineto.kernel(kineto.GEMM, 0, 10), kineto.kernel(custom, 8, 6)])
    assert (found.communication_ns, found.exposed_ns) == (ns(6), ns(4))
    assert (found.usual_ns, found.usual_exposed_ns) == (0, 0)
    assert found.beyond == (KernelSum("custom all-reduce", 1, ns(6)),)


def test_long_kernels_of_no_family_on_streams_for_communication() -> None:
    events = [
        *(kineto.kernel(kineto.GEMM, at, 1) for at in range(5)),
        kineto.collective(0, 1, stream=20),
        kineto.kernel("ours_exchange", 2, 3, stream=20),
        kineto.kernel("ours_flag", 6, 0.01, stream=20),
        kineto.kernel("long_gemm", 7, 5, stream=7),
    ]
    assert measured(events).unrecognised == (KernelSum("ours_exchange", 1, ns(3)),)


def test_a_stream_that_mostly_computes_is_not_for_communication() -> None:
    kernels = [kineto.kernel(kineto.GEMM, at, 1) for at in range(5)]
    assert measured([*kernels, kineto.collective(6, 1, stream=7)]).unrecognised == ()


def test_a_sample_says_nothing_about_its_steps() -> None:
    found = summary(device.sampled(world_size=1))
    assert found[Device].complete == {}
    assert found[Steps].ranks[0].exposed_ns is None
    assert not found[Overlap].on_device


def test_the_judged_window_is_that_of_the_measured_steps() -> None:
    events = [kineto.step(n, 100 * n, 100) for n in range(4)]
    events += [kineto.kernel(kineto.GEMM, 50, 1), kineto.kernel(kineto.GEMM, 250, 100)]
    found = measured([*events, kineto.kernel(kineto.GEMM, 450, 50)])
    judged = found.judged
    assert (judged.steps, judged.span_ns, judged.compute_ns) == (2, ns(200), ns(100))
    assert judged.idle_ns == ns(100)
    assert (judged.before_ns, judged.before_idle_ns) == (ns(200), ns(199))
    assert found.span_ns == ns(450)  # the whole record


def test_without_steps_the_whole_record_is_judged() -> None:
    judged = measured(EVENTS).judged
    assert (judged.steps, judged.span_ns, judged.idle_ns) == (0, ns(35), ns(9))
    assert judged.before_ns == 0


def test_host_traces_have_no_device() -> None:
    assert Device.collect(make.rank_trace(), RankClock()).ranks == {}


def test_ranks_merge_in_any_order() -> None:
    one, two, three = (
        Device.collect(device.busy(rank, world_size=3), RankClock()) for rank in range(3)
    )
    assert one.merge(two).merge(three) == one.merge(two.merge(three))


def test_a_size_that_is_not_known_is_not_small() -> None:
    unsized = kineto.kernel(kineto.NCCL, 10, 5, stream=20)
    rows = summary(device.rank([kineto.step(1, 0, 50), unsized], world_size=1))[Communication].rows
    (kind, row), *_ = rows.items()
    assert (kind.size_class, row.in_flight_ns, row.algbw) == ("not known", ns(5), None)


def test_bandwidth_is_of_the_time_in_the_kernel() -> None:
    event = kineto.collective(10, 4, elements=1 << 20)
    rows = summary(device.rank([kineto.step(1, 0, 50), event], world_size=1))[Communication].rows
    (row,) = rows.values()
    assert row.algbw == pytest.approx((2 << 20) / 4e-3)
