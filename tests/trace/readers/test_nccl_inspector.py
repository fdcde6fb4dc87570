"""Dumps of NCCL Inspector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.errors import TraceError
from dsprof.trace.run import find_run
from tests.factories import exports as make
from tests.factories.trace_files import read


def write(path: Path, *records: Any) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path


def test_each_record_names_its_communicator(tmp_path: Path) -> None:
    world, pair = make.communicator(3, 4, "0xa"), make.communicator(0, 2, "0xb")
    records = [world | make.collective(i, 1 << 20, 100) for i in range(3)]
    trace = read(write(tmp_path / "a.log", pair | make.collective(0, 1 << 10, 50), *records))
    assert (trace.rank, trace.header.world_size, trace.header.host) == (3, 4, "node7")
    assert sorted((group.name, group.size) for group in trace.groups.values()) == [
        ("0xa", 4),
        ("0xb", 2),
    ]
    assert trace.collectives.seq.tolist() == [0, 0, 1, 2]


def test_since_version_4_3_a_marker_names_it(tmp_path: Path) -> None:
    marker = make.communicator(1) | {"dump_stats": {"coll_records": 2, "coll_dropped_total": 40}}
    again = make.communicator(1) | {"dump_stats": {"coll_records": 1, "coll_dropped_total": 50}}
    path = write(
        tmp_path / "a.log",
        marker,
        make.collective(0, 1 << 20, 100),
        make.collective(1, 1 << 20, 100),
        again,
        make.collective(2, 1 << 20, 100),
    )
    trace = read(path)
    assert (trace.rank, len(trace.collectives), trace.is_sampled) == (1, 3, True)
    assert any("dropped 50 records" in note.text for note in trace.notes)


@pytest.mark.parametrize(
    ("op", "factor", "total"),
    [("AllReduce", 2 * 7 / 8, 1), ("ReduceScatter", 7 / 8, 8), ("AllGather", 7 / 8, 8)],
)
def test_bandwidths_are_those_of_nccl_tests(
    tmp_path: Path, op: str, factor: float, total: int
) -> None:
    record = make.communicator(0, 8) | make.collective(0, 1 << 30, 40_000, op)
    (row,) = diagnose(find_run([write(tmp_path / "a.log", record, record)])).communication
    assert row.bytes == 2 * total << 30
    assert row.algbw == pytest.approx((total << 30) / 40e-3)
    assert row.busbw == pytest.approx(row.algbw * factor)


def test_times_of_the_host_give_no_speed(tmp_path: Path) -> None:
    of_kernel, of_host = (
        make.communicator(0, 8) | make.collective(0, 1 << 30, took_us)
        for took_us in (40_000, 90_000)
    )
    of_kernel["coll_perf"]["coll_timing_source"] = "kernel_gpu"
    of_host["coll_perf"]["coll_timing_source"] = "collective_cpu"
    path = write(tmp_path / "a.log", of_kernel, of_host, of_kernel)
    (row,) = diagnose(find_run([path])).communication
    assert (row.calls, row.bytes) == (3, 3 << 30)
    assert row.algbw == pytest.approx((1 << 30) / 40e-3)
    assert any(
        note.text == "NCCL Inspector timed 1 call of a.log on the host: excluded from speeds"
        for note in read(path).notes
    )


def test_ranks_of_a_folder_are_one_run(tmp_path: Path) -> None:
    for rank in range(2):
        record = make.communicator(rank) | make.collective(0, 1 << 20, 100)
        write(tmp_path / f"node7-pid{100 + rank}.log", record)
    (tmp_path / "train.log").write_text('{"loss": 1}\n')
    run = find_run([tmp_path])
    assert [header.rank for header in run.headers] == [0, 1]
    assert run.strangers == ()


def test_a_damaged_record_is_counted(tmp_path: Path) -> None:
    good = json.dumps(make.communicator() | make.collective(0, 1 << 20, 100))
    path = tmp_path / "a.log"
    path.write_text(f'{good}\n{{"coll_perf": {{"coll": 7}}}}\n{good}\n{good[:60]}')
    trace = read(path)
    assert (len(trace.collectives), trace.broken_lines) == (2, 2)


def test_a_rank_that_cannot_be(tmp_path: Path) -> None:
    record = make.communicator(9, 8) | make.collective(0, 1 << 20, 100)
    with pytest.raises(TraceError, match="invalid rank 9 for world size 8"):
        find_run([write(tmp_path / "a.log", record)])
