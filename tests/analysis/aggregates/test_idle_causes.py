from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.idle_causes import (
    LAUNCHING,
    NAMES,
    NO_HOST,
    PYTHON,
    UNRECORDED,
    IdleCauses,
)
from dsprof.trace.device_activity import ALLOCATION, DATA_LOADER, LOADING, SYNCHRONISATION, TRANSFER
from tests.factories import kineto
from tests.factories.device import rank, sampled
from tests.factories.trace import MS, rank_trace, summary

GAP = [kineto.kernel("gemm", 0, 10), kineto.kernel("gemm", 50, 10)]  # idle from 10 to 50


def causes(*events):
    return summary(rank([*GAP, *events], world_size=1))[IdleCauses].idle_ns


def call(name, at, took, category="cuda_runtime"):
    return kineto.span(category, name, at, took)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaMalloc", ALLOCATION),
        ("cudaFree", ALLOCATION),
        ("cudaHostAlloc", ALLOCATION),
        ("hipMalloc", ALLOCATION),
        ("hipFree", ALLOCATION),
        ("cuMemMap", ALLOCATION),
        ("cudaMemcpyAsync", TRANSFER),
        ("hipMemcpyWithStream", TRANSFER),
        ("cudaStreamSynchronize", SYNCHRONISATION),
        ("cudaEventSynchronize", SYNCHRONISATION),
        ("hipDeviceSynchronize", SYNCHRONISATION),
        ("cudaGraphInstantiate", LOADING),
        ("hipGraphInstantiateWithFlags", LOADING),
        ("cuModuleLoadData", LOADING),
        ("cuLibraryLoadData", LOADING),
        ("hipModuleLoadData", LOADING),
    ],
)
def test_calls_of_the_runtime(name, kind):
    assert causes(call(name, 15, 30)) == {NAMES[kind]: 30 * MS, UNRECORDED: 10 * MS}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", DATA_LOADER),
        ("torch/utils/data/dataloader.py(700): __next__", DATA_LOADER),
        ("_compile.compile_inner (dynamo_timed)", LOADING),
        ("torch/_inductor/compile_fx.py(300): compile_fx", LOADING),
        ("triton/compiler/compiler.py(220): compile", LOADING),
    ],
)
def test_ranges_of_torch_and_python(name, kind):
    assert causes(call(name, 10, 40, "user_annotation")) == {NAMES[kind]: 40 * MS}


def test_a_launch_that_takes_long_loads_its_kernel():
    assert causes(call("hipLaunchKernel", 10, 40)) == {NAMES[LOADING]: 40 * MS}


def test_operators_launch_and_python_runs_between_them():
    operator = call("aten::mm", 10, 30, "cpu_op")
    assert causes(operator) == {LAUNCHING: 30 * MS, UNRECORDED: 10 * MS}
    python = call("train.py(3): main", 0, 60, "python_function")
    assert causes(operator, python) == {LAUNCHING: 30 * MS, PYTHON: 10 * MS}


def test_what_is_launched_after_a_stop_is_the_price_of_the_stop():
    stop = call("cudaStreamSynchronize", -35, 46)
    assert causes(stop, call("aten::mm", 11, 39, "cpu_op")) == {NAMES[SYNCHRONISATION]: 40 * MS}


def test_the_price_of_a_stop_is_no_more_than_it_lasted():
    stop = call("cudaStreamSynchronize", 5, 6)
    assert causes(stop, call("aten::mm", 11, 39, "cpu_op")) == {
        NAMES[SYNCHRONISATION]: 6 * MS,
        LAUNCHING: 34 * MS,
    }


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("cudaHostAlloc", "cuda_runtime"),
        ("enumerate(DataLoader)#x", "user_annotation"),
        ("aten::copy_", "cpu_op"),
    ],
)
def test_threads_that_launch_nothing_keep_no_device_waiting(name, category):
    launch = call("cudaLaunchKernel", 0, 0.005)
    beside = kineto.span(category, name, 10, 40, tid=9)
    assert causes(launch, beside) == {UNRECORDED: 40 * MS}
    assert UNRECORDED not in causes(launch, beside | {"tid": 7})


def test_what_a_loader_allocates_is_an_allocation():
    found = causes(
        call("enumerate(DataLoader)#x", 10, 40, "user_annotation"), call("cudaHostAlloc", 20, 5)
    )
    assert found == {NAMES[DATA_LOADER]: 35 * MS, NAMES[ALLOCATION]: 5 * MS}


def test_short_gaps_are_those_between_launches():
    kernels = [kineto.kernel("gemm", n * 0.02, 0.01) for n in range(100)]
    found = summary(rank([*kernels, call("cudaDeviceSynchronize", 0, 5)], world_size=1))
    assert found[IdleCauses].idle_ns == {LAUNCHING: pytest.approx(0.99 * MS, rel=0.01)}


def test_a_record_of_the_device_alone_tells_no_cause():
    assert causes() == {NO_HOST: 40 * MS}
    assert causes(kineto.step(1, 0, 60)) == {NO_HOST: 40 * MS}


def test_what_is_launched_into_a_capture_does_not_run():
    begin, end = (
        call(f"hipStream{word}Capture", at, 0.005) for word, at in (("Begin", 15), ("End", 45))
    )
    into = call("aten::mm", 20, 10, "cpu_op")
    assert causes(end, into, begin) == {NAMES[LOADING]: 30.005 * MS, UNRECORDED: 9.995 * MS}
    assert causes(begin, into)[LAUNCHING] == 10 * MS
    assert causes(begin | {"tid": 9}, end, into)[LAUNCHING] == 10 * MS


def test_only_the_judged_window_counts():
    steps = [kineto.step(n, 100 * n, 100) for n in range(2)]
    events = [
        kineto.kernel("gemm", 0, 1),
        call("cudaMalloc", 1, 99),
        kineto.kernel("gemm", 100, 90),
    ]
    found = summary(rank([*steps, *events, call("cudaFree", 190, 10)], world_size=1))[IdleCauses]
    assert found.idle_ns == {NAMES[ALLOCATION]: 10 * MS}


def test_a_sample_and_a_cpu_have_none():
    assert summary(sampled(world_size=1))[IdleCauses] == IdleCauses({})
    assert summary(rank_trace())[IdleCauses] == IdleCauses({})


def test_merging_in_any_grouping_is_the_same():
    one, two, three = (IdleCauses({"x": n, str(n): 1}, {"x": n}) for n in (1, 2, 3))
    assert one.merge(two).merge(three) == one.merge(two.merge(three))
    assert one.merge(two) == IdleCauses({"x": 3, "1": 1, "2": 1}, {"x": 3})
