from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.host_waits import HostWaits, Stop, StopSums
from tests.factories import kineto
from tests.factories.device import rank
from tests.factories.device_run import device_rank, synchronisations
from tests.factories.trace import MS, summary, zero_rank


def test_stops_of_measured_steps_are_counted():
    found = summary(device_rank(stalls=synchronisations(3, 1.5)))[HostWaits]
    assert found.calls_per_step == 3
    assert found.idle_ms_per_step == pytest.approx(4.5)
    assert found.rank_steps == 4, "two of six are warm-up"


def test_a_host_clock_shows_none():
    assert summary(zero_rank())[HostWaits] == HostWaits({})
    assert HostWaits({}).calls_per_step == HostWaits({}).idle_ms_per_step == 0


def profile(*events):
    steps = [kineto.step(number, 100 * number, 100) for number in range(2)]
    return rank([*steps, *events], world_size=1)


def stop(name, at, took):
    return kineto.span("cuda_runtime", name, at, took)


def test_calls_of_a_profile_by_name_and_each_gap_of_the_device_once():
    busy = [kineto.kernel("gemm", at, took) for at, took in ((100, 20), (130, 20), (180, 20))]
    found = summary(
        profile(
            *busy,
            stop("cudaStreamSynchronize", 110, 12),  # ends in the gap from 120 to 130
            stop("cudaStreamSynchronize", 123, 1),  # so does this
            stop("cudaEventSynchronize", 135, 1),  # the device is busy
            stop("hipDeviceSynchronize", 50, 1),  # of a step that is not measured
            stop("cudaLaunchKernel", 160, 1),
        )
    )[HostWaits]
    assert found.rows == {
        Stop("cudaStreamSynchronize"): StopSums(2, 13 * MS),
        Stop("cudaEventSynchronize"): StopSums(1, MS),
    }
    assert (found.rank_steps, found.idle_ns) == (1, 10 * MS)


def test_item_of_a_tensor_on_the_cpu_stops_nobody():
    name = "aten::_local_scalar_dense"
    items = [kineto.span("cpu_op", name, at, 0.001) for at in range(110, 190)]
    found = summary(profile(kineto.kernel("gemm", 100, 20), *items))[HostWaits]
    assert found == HostWaits({}, 1)


def test_calls_that_return_at_once_waited_for_nothing():
    quick = [stop("cudaMemcpyAsync", at, 0.01) for at in range(110, 190)]
    found = summary(profile(kineto.kernel("gemm", 100, 20), *quick))[HostWaits]
    assert found == HostWaits({}, 1)


def test_blocking_copies_are_stops_of_the_operator_and_annotation_around_them():
    around = [
        kineto.span("cpu_op", "aten::to", 109, 32),
        kineto.span("cpu_op", "aten::copy_", 110, 31),
    ]
    around.append(kineto.span("user_annotation", "log the loss", 105, 40))
    for name in ("cudaMemcpyAsync", "hipMemcpyWithStream"):
        copies = [stop(name, 110, 30), kineto.copy(130, 10)]
        found = summary(profile(kineto.kernel("gemm", 100, 20), *around, *copies))[HostWaits]
        assert found.rows == {Stop(name, "aten::to", "log the loss"): StopSums(1, 30 * MS)}
        assert found.idle_ns == 20 * MS  # no kernel runs while the host is blocked


def test_threads_that_launch_nothing_hold_nothing_up():
    other = kineto.span("cuda_runtime", "cudaEventSynchronize", 110, 50, tid=9)
    launch = stop("cudaLaunchKernel", 100, 0.01)
    found = summary(profile(kineto.kernel("gemm", 100, 20), other, launch))[HostWaits]
    assert found.rows == {}


def test_data_that_is_loaded_after_a_stop_is_not_its_cost():
    load = kineto.span("user_annotation", "enumerate(DataLoader)#_SingleProcess.__next__", 122, 60)
    busy = [kineto.kernel("gemm", 100, 20), kineto.kernel("gemm", 190, 10)]
    found = summary(profile(*busy, load, stop("cudaStreamSynchronize", 110, 11)))[HostWaits]
    assert found.idle_ns == 10 * MS


def test_merging_in_any_grouping_is_the_same():
    one, two, three = (HostWaits({Stop("x"): StopSums(n, n)}, n + 1, n, 10 * n) for n in range(3))
    joined = HostWaits({Stop("x"): StopSums(3, 3)}, 6, 3, 30)
    assert one.merge(two).merge(three) == one.merge(two.merge(three)) == joined
