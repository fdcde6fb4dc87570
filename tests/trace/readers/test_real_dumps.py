"""Dumps and snapshots of real jobs, of which is known what was done to them, or what they hold."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.model import Diagnosis
from dsprof.findings.finding import Finding, Status
from dsprof.trace.run import find_run
from tests.shared_data import folder


def judged(name: str, tmp_path: Path) -> Diagnosis:
    """Judge the dumps of a set alone: what was injected stands beside them."""
    for path in (folder("flight_recorder") / name).glob("_dump_*"):
        shutil.copy(path, tmp_path)
    return diagnose(find_run([tmp_path]))


def failed(diagnosis: Diagnosis) -> list[Finding]:
    return [finding for finding in diagnosis.findings if finding.status is Status.FAIL]


def test_devices_that_fail_are_those_of_ranks_12_and_14(tmp_path: Path) -> None:
    diagnosis = judged("nvrx_gpu_error_1st", tmp_path)
    [unfinished] = failed(diagnosis)  # whoever waits for them waits for that reason
    assert unfinished.ranks == (12, 14)
    assert unfinished.title == "Ranks did not finish collectives that others finished"
    [first] = [row for row in diagnosis.flights if row.name == "74"]
    assert (first.ranks, first.waiting, first.absent) == ([12, 13, 14, 15], [13, 14, 15], [12])
    assert (first.op, first.dtype) == ("all_to_all", "BFloat16")


def test_processes_that_hang_are_ranks_10_and_15(tmp_path: Path) -> None:
    diagnosis = judged("nvrx_lock_gil_2nd", tmp_path)
    [absent] = failed(diagnosis)
    assert absent.ranks == (10, 15)
    missing = {row.name: row.absent for row in diagnosis.flights if row.op == "all_to_all"}
    assert missing["73"] == [10]
    assert missing["74"] == [15]
    assert {rank for row in diagnosis.flights for rank in row.absent} == {10, 15}


SNAPSHOTS = {  # reserved, active, cached, stuck, partly used, segments
    "MAGMA27_memory_snapshot": (14180941824, 1377753600, 11773411328, 1029776896, 41, 216),
    "Wedsonlin_medium_1024_inference_memory_snapshot": (
        *(3204448256, 1703677952, 1486880768, 13889536),
        *(2, 108),
    ),
    "notHanmin_memory_snapshot_forward": (
        *(47234154496, 44607570432, 1774190592, 852393472),
        *(586, 1722),
    ),
}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_snapshots_say_what_is_stuck_and_what_is_cached(name: str) -> None:
    diagnosis = diagnose(find_run([folder("memory") / f"{name}.pickle.gz"]))
    [row] = diagnosis.snapshots
    assert SNAPSHOTS[name] == (
        row.reserved_bytes,
        row.active_bytes,
        row.cached_bytes,
        row.stuck_bytes,
        row.partly_used,
        row.segments,
    )
    assert failed(diagnosis) == []
    [said] = [f for f in diagnosis.findings if f.rule == "allocator-fragmentation"]
    assert said.title == "Device memory shows little fragmentation"
    assert row.peak_bytes is not None
    assert row.active_bytes * 0.9 < row.peak_bytes <= row.reserved_bytes
