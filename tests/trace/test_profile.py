"""A profiler's trace beside dsprof's own: both are used, and nothing counts twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsprof.analysis.aggregates.communication import Communication
from dsprof.analysis.aggregates.device import Device
from dsprof.analysis.aggregates.host_waits import HostWaits, Stop, StopSums
from dsprof.analysis.aggregates.overlap import Overlap
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summarise import summarise
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.build import diagnose
from dsprof.rules import RULES
from dsprof.trace.lines import LINES, Line
from dsprof.trace.run import find_run, read_run
from dsprof.trace.schema import Trailer
from tests.factories import kineto
from tests.factories import trace as make
from tests.factories.trace_files import encode, write_run

EPOCH_NS = int(kineto.START_US) * 1000
LATER_MS = 40.0
"""The profiler begins so much later than dsprof."""


def native(
    folder: Path, rank: int = 0, *, timed: bool = True, steps: int = 6, world_size: int = 2
) -> Path:
    """Steps of 100 ms on a device; the main stream is held from 60 to 80 of each, if `timed`."""
    head = make.header(
        rank,
        world_size,
        device="cuda",
        backend="nccl",
        started_epoch_ns=EPOCH_NS - make.ns(LATER_MS),
    )
    events: list[Line] = [LINES["header"](name="header", args=head)]
    events.append(LINES["group"](name="world", args=make.group(world_size)))
    for number in range(steps):
        at = LATER_MS + 100.0 * number
        comm = make.enqueued("all_reduce", at + 60, seq=number, step=number)
        events += [comm, LINES["step"](name="step", args=make.step(number, at, at + 100))]
        if timed:
            stall = make.stall(comm, "collective", at + 60, at + 80)
            events.append(LINES["stall"](name="stall", args=stall))
            window = make.device_step(number, at, at + 100)
            events.append(LINES["device_step"](name="step", args=window))
    events.append(LINES["trailer"](name="trailer", args=Trailer(reason="exit", steps=steps)))
    path = folder / f"trace.rank{rank:05d}.json"
    path.write_bytes(encode(events))
    return path


def profiled(folder: Path, rank: int = 0, first: int = 0, last: int = 6, **fields: object) -> Path:
    """Of each step: kernels from 0 to 50, communication from 60 to 80, a copy from 85 to 90."""
    events = []
    for number in range(first, last):
        at = 100.0 * number
        events += [
            kineto.step(number, at, 100.0),
            kineto.kernel(kineto.GEMM, at, 50),
            kineto.collective(at + 60, 20),
            kineto.copy(at + 85, 5),
        ]
    events.append(kineto.span("cuda_runtime", "cudaDeviceSynchronize", 100.0 * first + 10, 1))
    return kineto.write(folder / f"profile{rank}.json", events, rank, **fields)


def read(folder: Path) -> RunSummary:
    return summarise(find_run([folder]))


def notes(summary: RunSummary, rank: int = 0) -> str:
    return "; ".join(summary[Run].ranks[rank].notes)


def test_waits_are_dsprofs_and_the_rest_of_a_step_is_the_profilers(tmp_path: Path) -> None:
    for rank in range(2):
        native(tmp_path, rank)
        profiled(tmp_path, rank)
    summary = read(tmp_path)
    total = summary[Steps].total
    assert (total.exposed_ns, total.compute_ns) == (4 * 20 * make.MS, 4 * 50 * make.MS)
    assert (total.copies_ns, total.idle_ns) == (4 * 5 * make.MS, 4 * 25 * make.MS)
    assert total.other_ns == 0
    assert "wall clock" in notes(summary)
    # One collective a step, by dsprof's account; the kernels are counted among the device's.
    assert total.calls == 4
    assert summary[Device].ranks[1].operations == {"allreduce": 6}
    assert summary[Device].ranks[1].idle_ns == (6 * 25 - 10) * make.MS


def test_steps_that_the_profiler_did_not_see_are_not_split(tmp_path: Path) -> None:
    native(tmp_path, world_size=1)
    profiled(tmp_path, first=3, last=5, distributedInfo={"rank": 0, "world_size": 1})
    steps = read(tmp_path)[Steps]
    assert [steps.parts[n].compute_ns is not None for n in range(6)] == [
        n in (3, 4) for n in range(6)
    ]
    assert [steps.parts[n].exposed_ns for n in range(6)] == [20 * make.MS] * 6
    assert (steps.total.compute_ns, steps.total.idle_ns) == (None, None)
    assert steps.total.exposed_ns == 4 * 20 * make.MS


def test_where_dsprof_could_not_time_the_device_the_profiled_steps_are_judged(
    tmp_path: Path,
) -> None:
    native(tmp_path, timed=False, world_size=1)
    assert read(tmp_path)[Steps].exposed_share is None
    profiled(tmp_path, first=3, last=5, distributedInfo={"rank": 0, "world_size": 1})
    summary = read(tmp_path)
    steps = summary[Steps]
    # On another clock this stop of the host would be in step 2.
    assert summary[HostWaits].rows == {Stop("cudaDeviceSynchronize"): StopSums(1, make.MS)}
    assert steps.measured == [3, 4]
    assert steps.exposed_share == pytest.approx(0.2)
    assert (steps.total.compute_ns, steps.total.other_ns) == (100 * make.MS, 0)
    assert summary[Overlap].exposed_ns == 40 * make.MS
    assert {row.rank_steps for row in summary[Communication].rows.values()} == {2}
    assert diagnose(find_run([tmp_path])).steps.method.startswith("device timeline")


def test_a_profile_of_another_time_of_day_is_not_used(tmp_path: Path) -> None:
    native(tmp_path)
    native(tmp_path, 1)
    later = [kineto.step(0, 3_600_000, 100), kineto.kernel(kineto.GEMM, 3_600_000, 50)]
    profile = kineto.write(tmp_path / "profile.json", later)
    summary = read(tmp_path)
    assert "at another time" in notes(summary)
    assert summary[Device].ranks == {}
    assert summary[Run].ranks[0].beside == (str(profile),)


def test_without_a_wall_clock_the_device_stands_beside_the_steps(tmp_path: Path) -> None:
    native(tmp_path)
    native(tmp_path, 1)
    events = [kineto.kernel(kineto.GEMM, 0, 30), kineto.collective(40, 10)]
    for event in events:
        event["ts"] -= kineto.START_US - 5_000_000.0
    kineto.write(tmp_path / "profile.json", events)
    summary = read(tmp_path)
    assert "cannot be aligned" in notes(summary)
    assert summary[Device].ranks[0].idle_ns == 10 * make.MS
    assert summary[Steps].total.compute_ns is None
    assert summary[Steps].total.exposed_ns == 4 * 20 * make.MS


def test_a_profile_without_kernels_says_so(tmp_path: Path) -> None:
    write_run(tmp_path, started_epoch_ns=EPOCH_NS)
    calls = [kineto.step(0, 0, 100), kineto.span("cpu_op", "gloo:all_reduce", 10, 5)]
    kineto.write(tmp_path / "profile.json", calls)
    summary = read(tmp_path)
    assert "has no kernels" in notes(summary)
    assert summary[Steps].total.calls == 2


def test_on_a_host_clock_kernels_do_not_split_steps(tmp_path: Path) -> None:
    write_run(tmp_path, started_epoch_ns=EPOCH_NS)
    before = read(tmp_path)[Steps].total
    profiled(tmp_path, last=4)
    summary = read(tmp_path)
    assert summary[Steps].total == before
    assert summary[Device].ranks[0].compute_ns == 4 * 50 * make.MS


def test_of_two_profiles_of_a_rank_one_is_read(tmp_path: Path) -> None:
    native(tmp_path)
    first = profiled(tmp_path)
    second = tmp_path / "second.json"
    second.write_bytes(first.read_bytes().replace(b"/tmp/trace.json", b"/tmp/other.json"))
    kineto.write(second, [kineto.kernel(kineto.GEMM, 10, 5)])
    run = find_run([tmp_path])
    assert len(run.strangers) == 1
    (trace,) = read_run(run)
    assert trace.profile is not None
    assert len(trace.beside) == 1


def test_lateness_is_judged_by_arrivals_where_one_rank_was_profiled(tmp_path: Path) -> None:
    for rank in range(2):
        native(tmp_path, rank)
    late = next(rule for rule in RULES if rule.meta.id == "late-rank")
    kinds = late.meta.needs
    before = list(late.check(read(tmp_path).only(kinds), late.thresholds))
    profiled(tmp_path)
    assert list(late.check(read(tmp_path).only(kinds), late.thresholds)) == before
