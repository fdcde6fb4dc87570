"""Exports of real jobs, against what is known of each."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from dsprof.analysis.aggregates.device import Device
from dsprof.analysis.summarise import summarise
from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.model import Diagnosis
from dsprof.errors import TraceError
from dsprof.findings.finding import Status
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.run import find_run, read_run
from tests.shared_data import folder

ABOUT_COMMUNICATION = {
    "low-comm-overlap",
    "communication-bound-step",
    "late-rank",
    "small-collectives",
    "unrecognised-kernels",
}


@cache
def judged(name: str) -> Diagnosis:
    return diagnose(find_run([folder(name)]))


def read(name: str) -> RankTrace:
    run = find_run([folder(name)])
    return next(read_run(run))


def claims(diagnosis: Diagnosis) -> set[str]:
    told = {Status.FAIL, Status.INFO}
    return {finding.rule for finding in diagnosis.findings if finding.status in told}


def operations(trace: RankTrace) -> Counter[str]:
    rows = trace.collectives
    return Counter(rows.words[code] for code in rows.op.tolist())


def test_an_export_of_nsys_without_nccl() -> None:
    name = "nsys/saxpy-mpi-cuda_nsys_perlmutter0.sqlite.gz"
    (one,) = summarise(find_run([folder(name)]), [Device])[Device].ranks.values()
    # Unions that a script computed from the tables by itself.
    assert (one.span_ns, one.compute_ns) == (1097327843, 88573480)
    assert (one.copies_ns, one.idle_ns) == (284699600, 724054763)
    assert (one.kernels, one.communication_kernels, one.communication_ns) == (5, 0, 0)
    trace = read(name)
    assert trace.device is not None
    assert len(trace.device) == 5 + 15
    assert (trace.rank, trace.header.host, trace.header.pid) == (0, "nid001608", 1230493)
    assert trace.trailer is not None
    assert not claims(judged(name)) & ABOUT_COMMUNICATION


def test_the_record_of_nccl_inspector() -> None:
    diagnosis = judged("nccl_inspector/readme_example_0.json")
    (row,) = diagnosis.communication
    assert (row.op, row.group_size, row.calls, row.bytes) == ("AllReduce", 8, 1, 17179869184)
    assert row.algbw == pytest.approx(277.210914e9, rel=1e-5)
    assert row.busbw == pytest.approx(485.119099e9, rel=1e-5)
    assert row.busbw / row.algbw == pytest.approx(1.75)
    assert (diagnosis.run.ranks, diagnosis.run.world_size) == ([2], 8)
    assert not claims(diagnosis) & ABOUT_COMMUNICATION


def test_an_execution_trace_of_two_ranks() -> None:
    trace = read("chakra/resnet_2gpu_et.json.gz")
    assert operations(trace) == {"allreduce": 15, "broadcast": 6}
    # Its tensors are on cuda:1, and each of its all-reduces names the rank that called it.
    assert (trace.rank, trace.header.world_size) == (1, 2)
    assert trace.groups[1].label == "world"
    assert not claims(judged("chakra/resnet_2gpu_et.json.gz")) & ABOUT_COMMUNICATION


def test_it_pairs_in_kind_with_a_profile() -> None:
    trace, profile = read("chakra/resnet_2gpu_et.json.gz"), read("traces/hta_nccl_data")
    assert operations(trace) == operations(profile)


def test_an_execution_trace_of_an_old_schema() -> None:
    trace = read("chakra/1.0.2-chakra.0.0.4.json.gz")
    assert operations(trace) == {"all_gather": 10}
    assert set(trace.collectives.nbytes.tolist()) == {2 * 4}
    assert (trace.rank, trace.header.world_size) == (0, 2)


@pytest.mark.parametrize("name", ["linear_et", "benchmark_simple_add_et"])
def test_controls_that_communicate_nothing(name: str) -> None:
    diagnosis = judged(f"chakra/{name}.json.gz")
    assert diagnosis.communication == []
    assert claims(diagnosis) == set()


def test_a_graph_for_a_simulator_is_no_trace() -> None:
    with pytest.raises(TraceError, match="not a dsprof trace"):
        find_run([folder("chakra/small_chakra.0.json.gz")])
