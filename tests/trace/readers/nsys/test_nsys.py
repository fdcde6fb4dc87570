"""Exports of Nsight Systems, of several versions, processes and devices."""

from __future__ import annotations

import gzip
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsprof.analysis.aggregates.device import Device, RankDevice
from dsprof.analysis.aggregates.host_waits import HostWaits, Stop, StopSums
from dsprof.analysis.aggregates.idle_causes import NAMES, UNRECORDED, IdleCauses
from dsprof.analysis.summarise import summarise
from dsprof.diagnosis.build import diagnose
from dsprof.errors import TraceError
from dsprof.findings.finding import Status
from dsprof.trace.device_activity import ALLOCATION, LOADING, TRANSFER
from dsprof.trace.run import find_run, read_run
from tests.factories import exports as make
from tests.factories.trace_files import read

WORK = [(make.GEMM, 0, 30), (make.NCCL, 20, 20), (make.GEMM, 50, 10)]
COPIES = [(40, 5)]
FULL = Path("/dev/full")


def device(path: Path) -> RankDevice:
    (one,) = summarise(find_run([path]), [Device])[Device].ranks.values()
    return one


def parts(one: RankDevice) -> list[float]:
    split = (one.compute_ns, one.exposed_ns, one.copies_ns, one.idle_ns, one.span_ns)
    return [ns / make.MS for ns in split]


def test_the_time_of_the_device(tmp_path: Path) -> None:
    one = device(make.nsys(tmp_path / "a.sqlite", WORK, COPIES))
    assert parts(one) == [40, 10, 5, 5, 60]
    assert (one.communication_ns, one.overlap) == (20 * make.MS, 0.5)
    assert one.operations == {"all_reduce": 1}


@pytest.mark.parametrize("pack", ["plain", "gzip", "zip"])
def test_packed_or_not(tmp_path: Path, pack: str) -> None:
    path = make.nsys(tmp_path / "a.sqlite", WORK, COPIES)
    data = path.read_bytes()
    if pack == "gzip":
        path.write_bytes(gzip.compress(data))
    elif pack == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("run/a.sqlite", data)
    assert parts(device(path)) == [40, 10, 5, 5, 60]


@pytest.mark.parametrize("nbytes", [4096, 1 << 20])  # held until the file is closed, or not
def test_a_full_disk_is_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    path = make.nsys(tmp_path / "a.sqlite", WORK, COPIES)
    path.write_bytes(gzip.compress(path.read_bytes()[:nbytes]))
    monkeypatch.setattr("tempfile.NamedTemporaryFile", lambda suffix: FULL.open("w+b"))
    with pytest.raises(TraceError, match=r"cannot be unpacked.*: No space left on device; set TMP"):
        read(path)


@pytest.mark.parametrize(
    "column",
    ["streamId", "globalPid", "copyKind"],
)
def test_columns_that_other_versions_lack(tmp_path: Path, column: str) -> None:
    tables = ("KERNEL", "MEMCPY")
    without = {f"CUPTI_ACTIVITY_KIND_{table}.{column}" for table in tables}
    path = make.nsys(tmp_path / "a.sqlite", WORK, COPIES, without=without)
    assert parts(device(path)) == [40, 10, 5, 5, 60]


GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"


def collectives(path: Path) -> list[tuple[str, int, str]]:
    """Operation, bytes and label of the group of each collective."""
    trace = read(path)
    rows = trace.collectives
    labels = [trace.groups[number].label for number in rows.group.tolist()]
    words = [rows.words[code] for code in rows.op.tolist()]
    return list(zip(words, rows.nbytes.tolist(), labels, strict=True))


def test_ranges_of_nccl_say_what_kernels_send(tmp_path: Path) -> None:
    kernels = [(make.GEMM, 0, 1), (GENERIC, 10, 2), (GENERIC, 20, 2), (make.NCCL, 30, 2)]
    path = make.nsys(tmp_path / "a.sqlite", kernels)
    assert collectives(path)[0] == ("not named", 0, "unknown")
    ranges = [
        ("ncclCommInitRankConfig", 1, make.joined(0xABC, 4)),
        ("ncclReduceScatter", 9, make.sent(0xABC, 1000)),
        ("ncclGroupEnd", 9.5, b""),
        ("ncclAllGather", 19, make.sent(0xDEF, 1000)),
        ("ncclAllReduce", 29, make.sent(0xABC, 1000)),
    ]
    assert collectives(make.nccl_ranges(path, ranges)) == [
        ("reduce_scatter", 4000, "communicator 0xabc"),
        # Of how many ranks this group is was not recorded, and so the total is not known.
        ("all_gather", 0, "communicator 0xdef"),
        ("all_reduce", 1000, "communicator 0xabc"),
    ]
    assert read(path).groups[1].size == 4


@pytest.mark.parametrize(
    ("kernels", "calls"),
    [
        ([10], ["ncclAllReduce", "ncclAllReduce"]),  # a group of two
        ([10], ["ncclSend", "ncclAllReduce"]),
        ([10, 11], ["ncclAllReduce"]),  # two kernels for one call, or a graph's replay
        ([8], ["ncclAllReduce"]),  # launched before
    ],
)
def test_kernels_whose_call_is_not_certain_stay_without_a_size(
    tmp_path: Path, kernels: list[float], calls: list[str]
) -> None:
    path = make.nsys(tmp_path / "a.sqlite", [(make.NCCL, at, 0.5) for at in kernels])
    make.nccl_ranges(path, [(name, 9 + i / 10, make.sent(1, 64)) for i, name in enumerate(calls)])
    assert {nbytes for _, nbytes, _ in collectives(path)} == {0}


def test_a_call_of_another_kind_is_not_that_of_the_kernel(tmp_path: Path) -> None:
    path = make.nsys(tmp_path / "a.sqlite", [(make.NCCL, 10, 1)])
    make.nccl_ranges(path, [("ncclBroadcast", 9, make.sent(1, 64))])
    assert collectives(path) == [("all_reduce", 0, "unknown")]


@pytest.mark.parametrize("payload", [b"", b"x" * 31, make.sent(1, 64)[:40], b"\xff" * 56])
def test_a_payload_that_is_damaged_tells_nothing(tmp_path: Path, payload: bytes) -> None:
    path = make.nsys(tmp_path / "a.sqlite", [(make.NCCL, 10, 1)])
    make.nccl_ranges(path, [("ncclAllReduce", 9, payload)])
    assert {nbytes for _, nbytes, _ in collectives(path)} == {0}


def test_kernels_without_names_are_computation(tmp_path: Path) -> None:
    without = {"StringIds", "TARGET_INFO_SESSION_START_TIME"}
    one = device(make.nsys(tmp_path / "a.sqlite", WORK, COPIES, without=without))
    assert (one.communication_kernels, one.kernels) == (0, 3)


def test_one_file_of_several_ranks(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    for rank, pid in enumerate((300, 200, 100)):
        late = [(make.NCCL, 40 - 10 * rank, 10 + 10 * rank)]
        make.nsys(path, late, pid=pid, device=2 - rank, ranks={pid: rank})
    traces = list(read_run(find_run([path])))
    assert [(trace.rank, trace.header.pid) for trace in traces] == [(0, 300), (1, 200), (2, 100)]
    starts = [trace.header.started_monotonic_ns for trace in traces]
    assert [start - make.START_NS for start in starts] == [40 * make.MS, 30 * make.MS, 20 * make.MS]
    assert len({trace.header.boot_id for trace in traces}) == 1
    assert sum(trace.nbytes for trace in traces) <= path.stat().st_size


def test_processes_of_unknown_rank_are_numbered_by_their_devices(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    for pid, gpu in ((100, 1), (200, 0)):
        make.nsys(path, WORK, pid=pid, device=gpu)
    traces = list(read_run(find_run([path])))
    assert [(trace.rank, trace.header.pid) for trace in traces] == [(0, 200), (1, 100)]
    assert "numbered by their devices" in traces[0].notes[0].text


@pytest.mark.parametrize(
    ("name", "facts", "rank"),
    [
        ("a.sqlite", {"environment": {"RANK": 5, "WORLD_SIZE": 8}}, 5),
        ("a.sqlite", {"environment": {"SLURM_PROCID": 3}}, 3),
        ("report_rank2.sqlite", {}, 2),
        ("a.sqlite", {"ranges": [("MPI Rank 6", 0, 0)]}, 6),
        ("a.sqlite", {}, 0),
    ],
)
def test_where_the_rank_of_a_file_stands(
    tmp_path: Path, name: str, facts: dict[str, Any], rank: int
) -> None:
    trace = read(make.nsys(tmp_path / name, WORK, **facts))
    assert trace.rank == rank
    assert "SECRET" not in repr(trace.header)


def test_files_of_ranks_are_one_run_whose_late_rank_is_named(tmp_path: Path) -> None:
    for rank, arrives in enumerate((10, 10, 90)):
        work = [(make.GEMM, 0, 10), (make.NCCL, arrives, 100 - arrives), (make.GEMM, 100, 100)]
        path, started_ns = tmp_path / f"job.rank{rank}.sqlite", make.START_NS + rank
        make.nsys(path, work, pid=100 + rank, started_ns=started_ns)
    diagnosis = diagnose(find_run([tmp_path]))
    late = next(finding for finding in diagnosis.findings if finding.rule == "late-rank")
    assert (late.status, late.ranks) == (Status.FAIL, (2,))
    assert diagnosis.quality.clock_bound_ns is None  # recordings are set by their wall clocks


def test_steps_are_ranges_that_are_named_so(tmp_path: Path) -> None:
    ranges = [(f"step_{i}", 100 * i, 90) for i in range(6)]
    ranges += [("iteration 9", 0, 10), ("forward", 0, 50), ("step by step", 3, 4)]
    work = [(make.GEMM, 100 * i, 50) for i in range(6)]
    trace = read(make.nsys(tmp_path / "a.sqlite", work, ranges=ranges))
    assert [step.step for step in trace.steps] == list(range(6))
    assert {step.end_ns - step.start_ns for step in trace.steps} == {90 * make.MS}


def test_ranges_that_overlap_are_no_steps(tmp_path: Path) -> None:
    ranges = [("step 1", 0, 100), ("step 2", 50, 100)]
    assert read(make.nsys(tmp_path / "a.sqlite", WORK, ranges=ranges)).steps == []


def test_whole_graphs_are_said_to_hide_communication(tmp_path: Path) -> None:
    trace = read(make.nsys(tmp_path / "a.sqlite", WORK, graphs=[(60, 40)]))
    assert trace.device is not None
    assert len(trace.device) == 4
    assert "--cuda-graph-trace=node" in trace.notes[0].text


def test_the_busiest_device_of_a_process_is_judged(tmp_path: Path) -> None:
    path = make.nsys(tmp_path / "a.sqlite", WORK, COPIES)
    make.nsys(path, [(make.GEMM, 0, 1)], device=1)
    trace = read(path)
    assert trace.device is not None
    assert len(trace.device) == 4
    assert "device 0 is judged" in trace.notes[0].text
    assert "are left out (1)" in trace.notes[0].text
    assert np.diff(trace.device.elsewhere, axis=0).tolist() == [[make.MS]]


def test_other_databases_are_not_taken(tmp_path: Path) -> None:
    make.nsys(tmp_path / "job.rank0.sqlite", WORK)
    with sqlite3.connect(tmp_path / "mlflow.db") as file:
        file.execute("CREATE TABLE runs (name TEXT)")
    file.close()
    run = find_run([tmp_path])
    assert (len(run.files), run.strangers) == (1, ())


@pytest.mark.parametrize(("mode", "beside"), [("wal", "-wal"), ("delete", "-journal")])
def test_what_a_program_still_writes_is_refused(tmp_path: Path, mode: str, beside: str) -> None:
    path = make.nsys(tmp_path / "a.sqlite", WORK)
    file = sqlite3.connect(path, isolation_level=None)
    file.execute(f"PRAGMA journal_mode={mode}")
    file.execute("BEGIN EXCLUSIVE")
    file.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 1")
    if mode == "wal":
        file.execute("COMMIT")
    with pytest.raises(TraceError, match=f"the rest is in a.sqlite{beside};"):
        find_run([path])
    file.close()
    assert len(find_run([path]).files) == 1


@pytest.mark.parametrize(
    ("calls", "remedy"),
    [
        ([], "; record with `nsys profile --trace=cuda,nvtx`"),
        ([("cudaFree_v3020", 0, 1)], ", although it has CUDA calls; record again with an nsys"),
    ],
)
def test_an_export_without_work_on_a_device(
    tmp_path: Path, calls: list[tuple[str, float, float]], remedy: str
) -> None:
    with pytest.raises(TraceError, match=f"without kernels or copies{remedy}"):
        find_run([make.nsys(tmp_path / "a.sqlite", calls=calls)])


def test_what_the_host_did_while_the_device_was_idle(tmp_path: Path) -> None:
    calls = [
        ("cudaLaunchKernel_v7000", 0, 0.005),
        ("cudaFree_v3020", 12, 10),
        ("cuModuleLoadDataEx", 22, 20),
        ("cudaMemcpyAsync_v3020", 50, 10),
        ("cudaEventQuery_v3020", 60, 10),
    ]
    path = make.nsys(tmp_path / "a.sqlite", [(make.GEMM, 10, 1), (make.GEMM, 71, 1)], calls=calls)
    causes = summarise(find_run([path]), [IdleCauses])[IdleCauses]
    assert {name: ns / make.MS for name, ns in causes.idle_ns.items()} == {
        NAMES[ALLOCATION]: 10,
        NAMES[LOADING]: 20,
        NAMES[TRANSFER]: 10,
        UNRECORDED: 20,
    }


def test_captures_of_graphs_are_seen_by_their_short_calls(tmp_path: Path) -> None:
    calls = [
        ("cudaLaunchKernel_v7000", 0, 0.005),
        ("cudaStreamBeginCapture_v10000", 20, 0.005),
        ("cudaStreamEndCapture_v10000", 60, 5),
    ]
    path = make.nsys(tmp_path / "a.sqlite", [(make.GEMM, 10, 1), (make.GEMM, 71, 1)], calls=calls)
    causes = summarise(find_run([path]), [IdleCauses])[IdleCauses]
    assert causes.idle_ns == {NAMES[LOADING]: 45 * make.MS, UNRECORDED: 15 * make.MS}


def test_calls_in_which_the_host_waited(tmp_path: Path) -> None:
    steps = [(f"step {n}", 100 * n, 100) for n in range(2)]
    kernels = [(make.GEMM, 0, 5), (make.GEMM, 100, 20), (make.GEMM, 180, 5)]
    calls = [("cudaStreamSynchronize_v3020", 105, 40), ("cudaLaunchKernel_v7000", 150, 0.005)]
    path = make.nsys(tmp_path / "a.sqlite", kernels, ranges=steps, calls=calls)
    waits = summarise(find_run([path]), [HostWaits])[HostWaits]
    assert waits.rows == {Stop("cudaStreamSynchronize"): StopSums(1, 40 * make.MS)}
    assert waits.idle_ns == 40 * make.MS  # of 60 without a kernel, for it waited no longer


def test_calls_of_another_process_and_damaged_ones_are_not_taken(tmp_path: Path) -> None:
    path = make.nsys(tmp_path / "a.sqlite", WORK, calls=[("cudaFree_v3020", 42, 5)])
    make.nsys(path, WORK, pid=200, device=1)
    with sqlite3.connect(path) as file:
        file.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT 1, 'x', 2, 3, nameId "
            "FROM CUPTI_ACTIVITY_KIND_RUNTIME"
        )
    one, other = read_run(find_run([path]))
    assert one.device is not None
    assert one.device.host is not None
    assert len(one.device.host.name) == 1
    assert other.device is not None
    assert other.device.host is None
