from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.host_waits import HostWaits, StopSums
from dsprof.trace.device import ITEM
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
        "cudaStreamSynchronize": StopSums(2, 13 * MS),
        "cudaEventSynchronize": StopSums(1, MS),
    }
    assert (found.rank_steps, found.idle_ns) == (1, 10 * MS)


def test_what_item_does_inside_is_not_counted_again():
    item = kineto.span("cpu_op", ITEM, 110, 5)
    found = summary(
        profile(kineto.kernel("gemm", 100, 20), item, stop("cudaStreamSynchronize", 111, 3))
    )[HostWaits]
    assert found.rows == {ITEM: StopSums(1, 5 * MS)}


def test_merging_in_any_grouping_is_the_same():
    one, two, three = (HostWaits({"x": StopSums(n, n)}, n + 1, 10 * n) for n in range(3))
    joined = HostWaits({"x": StopSums(3, 3)}, 6, 30)
    assert one.merge(two).merge(three) == one.merge(two.merge(three)) == joined
