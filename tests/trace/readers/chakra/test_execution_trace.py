"""Execution traces: communication in order, without times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsprof.diagnosis.build import diagnose
from dsprof.findings.finding import Status
from dsprof.trace.run import find_run, read_run
from tests.factories import exports as make
from tests.factories.trace_files import read


def write(path: Path, nodes: list[Any], **fields: Any) -> Path:
    path.write_bytes(make.execution_trace(nodes, **fields))
    return path


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


OLD = "1.0.1"


def test_the_oldest_schema_tells_rank_and_size(tmp_path: Path) -> None:
    for rank in range(4):  # each process knows the group by an address of its own
        address = 94398426290464 + 64 * rank
        nodes = [ADD, make.old_params("all_to_allv", rank, 8, [2] * 4, group=address)]
        nodes += [make.old_params("allreduce", rank, 1000, group=address)]
        write(tmp_path / f"trace{9 - rank}.json", nodes, schema=OLD)
    run = find_run([tmp_path])
    assert [(one.rank, one.world_size) for one in run.headers] == [(rank, 4) for rank in range(4)]
    assert not run.strangers
    traces = list(read_run(run))
    rows = traces[1].collectives
    assert [rows.words[code] for code in rows.op.tolist()] == ["all_to_allv", "allreduce"]
    assert rows.nbytes.tolist() == [32, 4000]
    groups = [group for trace in traces for group in trace.groups.values()]
    assert {(group.key, group.label, group.size) for group in groups} == {("world:", "world", 4)}


def test_several_groups_of_the_oldest_schema_tell_no_rank(tmp_path: Path) -> None:
    nodes = [make.old_params("allreduce", 1, 10, group=address) for address in (1 << 40, 1 << 41)]
    trace = read(write(tmp_path / "et_rank3.json", nodes, schema=OLD))
    assert trace.rank == 3
    assert len(trace.collectives) == 2
    assert len({group.key for group in trace.groups.values()}) == 2


def test_without_any_size_the_ranks_of_the_oldest_schema_are_one_run(tmp_path: Path) -> None:
    for rank in range(3):
        nodes = [make.old_params("allreduce", rank, 1000)]
        write(tmp_path / f"trace_{rank}.json", nodes, schema=OLD)
    run = find_run([tmp_path])
    assert [(one.rank, one.world_size) for one in run.headers] == [(0, 3), (1, 3), (2, 3)]
