"""Chakra graphs: communication in order, with the sizes that they have, and without times."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.findings.finding import Status
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers import READERS, reader_of
from dsprof.trace.readers.chakra.graph import ChakraGraphReader
from dsprof.trace.run import find_run, read_run
from tests.factories import chakra as make
from tests.factories.trace_files import write_run

ADD = make.node(3, "aten::add", make.COMPUTE)
NODE = make.collective("ALL_REDUCE", 4000, pg_name="0")
BARE = make.metadata("0.0.4")
"""What generators write first."""


def read(path: Path, data: bytes) -> RankTrace:
    path.write_bytes(data)
    (trace,) = read_run(find_run([path]))
    return trace


def calls(trace: RankTrace) -> list[tuple[str, int]]:
    rows = trace.collectives
    return [(rows.words[code], size) for code, size in zip(rows.op, rows.nbytes, strict=True)]


@pytest.mark.parametrize("packed", [False, True])
def test_collectives_and_their_sizes(tmp_path: Path, packed: bool) -> None:
    data = make.CONVERTED + make.groups(4, 2) + ADD
    data += b"".join(make.collective(op, 100, pg_name="1") for op in make.COLLECTIVES) + ADD
    trace = read(tmp_path / "job.3.et", gzip.compress(data) if packed else data)
    assert calls(trace) == [
        ("all_reduce", 100),
        ("reduce", 100),
        ("all_gather", 200),  # a graph holds the share of one rank of two
        ("gather", 200),
        ("scatter", 100),
        ("broadcast", 100),
        ("all_to_all", 100),
        ("reduce_scatter", 100),
        ("reduce_scatter", 100),
        ("barrier", 100),
    ]
    assert (trace.rank, trace.header.world_size, trace.header.pid) == (3, 4, 77)
    assert (trace.header.backend, trace.broken_lines) == ("nccl", 0)
    assert trace.trailer is not None
    (group,) = trace.groups.values()
    assert (group.name, group.label, group.size) == ("1", "tensor", 2)


def test_a_generated_graph_has_no_groups(tmp_path: Path) -> None:
    data = BARE + make.node(0, "x", make.SEND, comm_size=10, comm_dst=1)
    data += make.node(1, "y", make.RECEIVE, comm_size=20)
    data += make.collective("ALL_GATHER", 30, involved_dim=[True, False, True])
    data += make.collective("ALL_REDUCE", -1)
    data += make.node(9, "z", make.COLLECTIVE, comm_type=99, comm_size=5)
    for rank in range(2):
        (tmp_path / f"job.{rank}.et").write_bytes(data)
    run = find_run([tmp_path])
    assert [(header.rank, header.world_size) for header in run.headers] == [(0, 2), (1, 2)]
    trace = next(read_run(run))
    # Of how many ranks a share is gathered is not known; nor is a size below zero.
    assert calls(trace) == [
        ("send", 10), ("recv", 20), ("all_gather", 0), ("all_reduce", 0), ("not named", 5),
    ]  # fmt: skip
    assert {group.label for group in trace.groups.values()} == {"unknown", "dimensions 0,2"}
    assert any("is unknown" in note.text for note in trace.notes)


def test_calls_of_the_host_beside_their_kernels_count_once(tmp_path: Path) -> None:
    host = [
        make.node(1, "c10d::allreduce_(0)", make.COLLECTIVE, is_cpu_op=True),
        make.node(2, "nccl:all_reduce", make.COLLECTIVE, is_cpu_op=True, comm_type=0, comm_size=40),
    ]
    trace = read(tmp_path / "job.0.et", BARE + b"".join(host) + make.collective("ALL_REDUCE", 40))
    assert calls(trace) == [("all_reduce", 40)]
    alone = read(tmp_path / "job.1.et", BARE + b"".join(host))
    assert calls(alone) == [("all_reduce", 40)]


def test_groups_that_are_listed_late(tmp_path: Path) -> None:
    gather = make.collective("ALL_GATHER", 10, pg_name="0")
    trace = read(tmp_path / "any.et", BARE + gather + make.groups(4) + gather)
    assert calls(trace) == [("all_gather", 0), ("all_gather", 40)]


def test_numbers_of_any_type(tmp_path: Path) -> None:
    """int32, uint64, sint64 of zigzag and fixed64 hold them; fractions are none."""
    size = make.sized(10, make.sized(1, "comm_size") + make.number(17, 7))  # -4
    types = {
        7: make.varint(6), 13: make.varint(6), 17: make.varint(12), 21: bytes([6, *bytes(7)]),
        3: bytes(8),
    }  # fmt: skip
    wires = {21: 1, 3: 1}
    kinds = [
        make.sized(1, "comm_type") + make.varint(field << 3 | wires.get(field, 0)) + value
        for field, value in types.items()
    ]
    nodes = [make.framed(make.number(3, 7) + size + make.sized(10, kind)) for kind in kinds]
    trace = read(tmp_path / "any.et", BARE + b"".join(nodes))
    assert calls(trace) == [*[("all_to_all", 0)] * 4, ("all_reduce", 0)]


@pytest.mark.parametrize("begin", [BARE, make.CONVERTED, make.metadata(place=1, schema="1.0.2")])
def test_metadata_of_all_releases(tmp_path: Path, begin: bytes) -> None:
    assert calls(read(tmp_path / "any", begin + NODE)) == [("all_reduce", 4000)]


def test_metadata_longer_than_what_is_looked_at(tmp_path: Path) -> None:
    begin = make.metadata(schema="1.0.2-chakra.0.0.4", input_file="layer 1\n" * 40_000)
    assert calls(read(tmp_path / "any", begin + NODE)) == [("all_reduce", 4000)]


@pytest.mark.parametrize("at", [1, 9, len(NODE) - 1])
def test_a_file_that_is_cut_gives_what_is_whole(tmp_path: Path, at: int) -> None:
    trace = read(tmp_path / "any.et", make.CONVERTED + NODE * 3 + NODE[:at])
    assert (len(trace.collectives), trace.broken_lines, trace.trailer) == (3, 1, None)


def test_a_broken_node_costs_itself_alone(tmp_path: Path) -> None:
    broken = make.framed(make.number(3, 7) + b"\x0b")
    trace = read(tmp_path / "any.et", make.CONVERTED + NODE + broken + NODE)
    assert (len(trace.collectives), trace.broken_lines) == (2, 1)
    assert trace.trailer is not None


def test_nothing_is_claimed_without_times(tmp_path: Path) -> None:
    path = tmp_path / "job.0.et"
    path.write_bytes(make.CONVERTED + make.groups(1) + NODE * 500)
    diagnosis = diagnose(find_run([path]))
    told = {f.rule for f in diagnosis.findings if f.status in (Status.FAIL, Status.INFO)}
    assert told <= {"data-quality"}
    (row,) = diagnosis.communication
    assert (row.calls, row.in_flight_ns, row.busbw) == (500, None, None)


def test_a_graph_that_does_not_communicate_says_so(tmp_path: Path) -> None:
    trace = read(tmp_path / "any.et", make.CONVERTED + ADD)
    assert any("no node" in note.text for note in trace.notes)
    assert not any("no node" in note.text for note in read(tmp_path / "b", BARE + NODE).notes)


def test_beside_traces_it_is_listed(tmp_path: Path) -> None:
    files = write_run(tmp_path)
    graph = tmp_path / "job.0.et"
    graph.write_bytes(make.CONVERTED + NODE)
    run = find_run([tmp_path])
    assert run.files == tuple(files)
    assert [one.path for one in run.strangers] == [graph]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x80" * 40,
        make.CONVERTED,
        BARE,
        BARE[:3],
        make.metadata("hello") + NODE,
        make.metadata(schema="hello") + NODE,
        make.framed(make.sized(1, "1.2") + b"x")[:-2] + NODE,
        BARE + b"\x05\x20abcd",
        b"\n\n0.1 \x08",
    ],
)
def test_other_files_are_not_taken_for_one(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "any"
    path.write_bytes(data)
    assert not isinstance(reader_of(path), ChakraGraphReader)


def test_no_other_reader_takes_it() -> None:
    for begin in (BARE, make.CONVERTED):
        assert [r.name for r in READERS if r.recognises(begin + NODE)] == ["Chakra graph"]
