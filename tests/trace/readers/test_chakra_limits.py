"""The reader of Chakra graphs against files made to exhaust it, and against Google's protobuf."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsprof.trace.readers.call_rows import GroupTable
from dsprof.trace.readers.chakra.nodes import COLLECTIVES, GraphCalls
from dsprof.trace.readers.chakra.protobuf import fields
from tests.factories import chakra as make
from tests.fuzzing.formats import FORMATS, read

GRAPH = FORMATS["chakra"]()
fuzz = settings(max_examples=100, deadline=None, derandomize=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job.1.et"


def test_a_whole_file_is_read_whole(path: Path) -> None:
    for data in (GRAPH.whole, gzip.compress(GRAPH.whole)):
        (trace,) = read(GRAPH, path, data) or []
        assert (trace.rank, trace.broken_lines, len(trace.collectives)) == (1, 0, 11)


def test_names_of_groups_are_taken_up_to_a_length(path: Path) -> None:
    group = {"pg_name": "0", "pg_desc": "x" * 10**6, "backend_config": "cuda:" + "y" * 10**6}
    told = make.node(2, "## process_group:init ##", 1, inputs=str([json.dumps([group])]))
    (trace,) = (
        read(GRAPH, path, make.CONVERTED + told + make.collective("BARRIER", 0, pg_name="0")) or []
    )
    assert len(trace.header.backend) < 1000
    assert [len(one.label) < 1000 for one in trace.groups.values()] == [True]


def test_many_nodes_are_read_in_bounded_memory(path: Path) -> None:
    """Nodes that do not communicate cost no memory."""
    path.write_bytes(make.CONVERTED + make.node(5, "aten::add", make.COMPUTE) * 10_000)
    tracemalloc.start()
    (trace,) = read(GRAPH, path) or []
    assert tracemalloc.get_traced_memory()[1] < 4e6
    tracemalloc.stop()
    assert len(trace.collectives) == 0


@pytest.mark.parametrize("length", [1 << 26, 1 << 62])
def test_a_length_without_a_message_takes_no_memory(path: Path, length: int) -> None:
    path.write_bytes(GRAPH.whole + make.varint(length) + b"x")
    tracemalloc.start()
    (trace,) = read(GRAPH, path) or []
    assert tracemalloc.get_traced_memory()[1] < 40e6
    tracemalloc.stop()
    assert (len(trace.collectives), trace.broken_lines) == (11, 1)


# Fields of each message: number, type, and the message that the type is.
SCHEMA: dict[str, dict[str, tuple[int, str, str]]] = {
    "BoolList": {"values": (1, "BOOL", "")},
    "IOInfo": {"values": (1, "STRING", "")},
    "AttributeProto": {
        "name": (1, "STRING", ""),
        "int32_val": (7, "INT32", ""),
        "int64_val": (9, "INT64", ""),
        "uint64_val": (13, "UINT64", ""),
        "sint64_val": (17, "SINT64", ""),
        "fixed64_val": (21, "FIXED64", ""),
        "bool_list": (28, "MESSAGE", "BoolList"),
        "string_val": (29, "STRING", ""),
    },
    "Node": {
        "id": (1, "UINT64", ""),
        "name": (2, "STRING", ""),
        "type": (3, "INT32", ""),
        "data_deps": (5, "UINT64", ""),
        "duration_micros": (7, "UINT64", ""),
        "inputs": (8, "MESSAGE", "IOInfo"),
        "attr": (10, "MESSAGE", "AttributeProto"),
    },
}
REPEATED = ("data_deps", "attr")


@cache
def google() -> Any:
    """The class of a node, made by Google's library from the schema's field numbers."""
    pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    file = pb2.FileDescriptorProto(name="et_def.proto", package="chakra", syntax="proto3")
    for name, told in SCHEMA.items():
        message = file.message_type.add(name=name)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")  # a zero is written, too
        for field, (number, kind, of) in told.items():
            made = message.field.add(name=field, number=number)
            made.type = getattr(made, f"TYPE_{kind}")
            many = field in REPEATED or name == "BoolList"
            made.label = made.LABEL_REPEATED if many else made.LABEL_OPTIONAL
            if of:
                made.type_name = f".chakra.{of}"
            if name == "AttributeProto" and field != "name":
                made.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("chakra.Node"))


NUMBERS = st.sampled_from(["int32_val", "int64_val", "uint64_val", "sint64_val", "fixed64_val"])


@fuzz
@given(data=st.data(), op=st.integers(0, 9), size=st.integers(0, 2**31 - 1), name=st.text())
def test_what_google_writes_is_read(data: st.DataObject, op: int, size: int, name: str) -> None:
    node = google()(id=data.draw(st.integers(0, 2**64 - 1)), name=name, type=make.COLLECTIVE)
    node.data_deps.extend(data.draw(st.lists(st.integers(0, 2**64 - 1))))
    node.inputs.values = data.draw(st.text())
    node.attr.add(name="comm_type", **{data.draw(NUMBERS): op})
    node.attr.add(name="comm_size", **{data.draw(NUMBERS): size})
    node.attr.add(name="pg_name", string_val="tensor")
    node.attr.add(name="involved_dim").bool_list.values.extend([True, False])
    table = GroupTable()
    found = GraphCalls(table).of(node.SerializeToString())
    assert found is not None
    call = found.call
    assert (call.op, call.nbytes) == (COLLECTIVES[op], 0 if "gather" in call.op else size)
    assert table.by_number()[call.group].name == "tensor"


@fuzz
@given(message=st.binary(max_size=40))
def test_what_google_refuses_is_refused(message: bytes) -> None:
    """Of any bytes; all fields are unknown to a list of flags but its one."""
    flags = type(google()().attr.add().bool_list)
    try:
        numbers = [number for number, _ in fields(message)]
    except ValueError:
        numbers = None
    try:
        flags.FromString(message)
    except Exception:
        assert numbers is None
    else:
        assert numbers is not None or any(byte & 7 in (3, 4) for byte in message)
