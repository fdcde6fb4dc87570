"""Execution traces: communication in order, without times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsprof.diagnosis.build import diagnose
from dsprof.rules.rule import Status
from dsprof.trace.run import find_run, read_run
from dsprof.trace.table import RankTrace
from tests.factories import exports as make


def write(path: Path, nodes: list[Any], **fields: Any) -> Path:
    path.write_bytes(make.execution_trace(nodes, **fields))
    return path


def read(path: Path) -> RankTrace:
    (trace,) = read_run(find_run([path]))
    return trace


ADD = make.node("aten::add", [make.tensor(4)], ["Tensor(float)"])


def test_collectives_and_their_sizes(tmp_path: Path) -> None:
    wait = make.node("record_param_comms", [33, ["", ""], 1, "wait", [], [], -1, -1, 1], ["Int"])
    nodes = [make.groups(4), ADD, make.params("broadcast", 0, 100), wait]
    nodes += [make.params("allreduce", 3, 1000), ADD]
    trace = read(write(tmp_path / "et.json", nodes))
    rows = trace.collectives
    assert [rows.words[code] for code in rows.op.tolist()] == ["broadcast", "allreduce"]
    assert rows.nbytes.tolist() == [400, 4000]
    # A broadcast names its root, an all-reduce the rank that called it.
    assert (trace.rank, trace.header.world_size, trace.header.pid) == (3, 4, 77)
    assert (trace.header.backend, trace.header.device) == ("nccl", "cuda")
    assert trace.trailer is not None


def test_the_rank_in_a_group_is_turned_into_that_of_the_world(tmp_path: Path) -> None:
    nodes = [make.groups(8, 4), make.params("allreduce", 2, 10, start=1, stride=2)]
    assert read(write(tmp_path / "et.json", nodes)).rank == 1 + 2 * 2


def test_groups_on_cpus_record_spans_alone(tmp_path: Path) -> None:
    inputs = [make.tensor(50, "cpu")], ["Tensor(float)"]
    nodes = [make.groups(2), *(make.node(f"gloo:{op}", *inputs) for op in ("send", "all_gather"))]
    for rank in range(2):
        write(tmp_path / f"et_{rank}.json", nodes)
    run = find_run([tmp_path])
    assert [header.rank for header in run.headers] == [0, 1]
    trace = next(read_run(run))
    assert trace.collectives.nbytes.tolist() == [200, 0]  # of a gather only the own part is known


def test_a_file_that_is_cut_gives_what_is_whole(tmp_path: Path) -> None:
    nodes = [make.groups(4), *(make.params("allreduce", 1, 10) for _ in range(5))]
    text = make.execution_trace(nodes)
    path = tmp_path / "et.json"
    path.write_bytes(text[: text.rindex(b'"record_param_comms"') + 60])
    trace = read(path)
    assert (len(trace.collectives), trace.broken_lines, trace.trailer) == (4, 1, None)


def test_nothing_is_claimed_without_times(tmp_path: Path) -> None:
    nodes = [make.groups(1), *(make.params("allreduce", 0, 10) for _ in range(500))]
    diagnosis = diagnose(find_run([write(tmp_path / "et.json", nodes)]))
    told = {f.rule for f in diagnosis.findings if f.status in (Status.FAIL, Status.INFO)}
    assert told <= {"data-quality"}
    (row,) = diagnosis.communication
    assert (row.calls, row.in_flight_ns, row.busbw) == (500, None, None)
