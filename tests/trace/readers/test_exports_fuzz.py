"""The readers of exports against damage and malice: traces or one TraceError, nothing else."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import tempfile
import time
import tracemalloc
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dsprof.analysis.summarise import summarise
from dsprof.errors import TraceError
from dsprof.trace.readers.call_rows import GroupTable
from dsprof.trace.readers.chakra.execution_nodes import Node, NodeCalls
from dsprof.trace.run import find_run, is_diagnosis, read_run
from dsprof.trace.table import RankTrace
from tests.factories import exports as make

fuzz = settings(
    max_examples=int(os.environ.get("DSPROF_FUZZ", "40")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
INSPECTOR = "\n".join(
    json.dumps(make.communicator(1, 4) | make.collective(i, 1 << 20, 100)) for i in range(20)
).encode()
EXECUTION = make.execution_trace(
    [make.groups(4, 2), *(make.params("allreduce", 1, 100 + i) for i in range(5))]
)
TEXTS = {"inspector": INSPECTOR, "execution": EXECUTION}
JSON = pytest.mark.parametrize("kind", TEXTS)
WORDS = ["NaN", "-Infinity", "1e999", "9" * 40, "-1", "true", '"x"', "null", "{", "[", '"', "}"]
WORDS += ["]", "}{", "},{", "[" * 3000, '{"a":' * 3000, "\\u0000", "\ud800", "[" * 200_000]


@cache
def export() -> bytes:
    path = Path(tempfile.mkdtemp()) / "export"
    kernels = [(make.GEMM, i, 0.5) for i in range(60)] + [(make.NCCL, 9, 5)]
    make.nsys(
        path,
        kernels,
        [(i, 0.1) for i in range(60)],
        ranks={100: 1},
        ranges=[(f"step {i}", i, 1) for i in range(9)],
        environment={"RANK": 1, "WORLD_SIZE": 2},
    )
    told = [("ncclCommInitRank", 1, make.joined(5, 2)), ("ncclAllReduce", 8.9, make.sent(5, 64))]
    make.nccl_ranges(path, told)
    data = path.read_bytes()
    path.unlink()
    return data


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "export"


def read(path: Path, data: bytes | None = None) -> list[RankTrace] | None:
    if data is not None:
        path.write_bytes(data)
    is_diagnosis(path)
    try:
        run = find_run([path])
        summarise(run)
        return list(read_run(run))
    except TraceError as refusal:
        message = str(refusal)
    assert message.startswith(str(path))
    assert "\n" not in message
    return None


@JSON
def test_whole_files_are_read_whole(path: Path, kind: str) -> None:
    for data in (TEXTS[kind], gzip.compress(TEXTS[kind])):
        (trace,) = read(path, data) or []
        assert (trace.rank, trace.broken_lines, trace.trailer is not None) == (1, 0, True)


def test_a_whole_export_is_read_whole(path: Path) -> None:
    (trace,) = read(path, export()) or []
    assert trace.device is not None
    assert (len(trace.device), len(trace.steps), trace.broken_lines) == (121, 9, 0)


@JSON
@fuzz
@given(data=st.data())
def test_text_that_is_cut_or_flipped(path: Path, kind: str, data: st.DataObject) -> None:
    whole = TEXTS[kind]
    place = data.draw(st.integers(0, len(whole) - 1))
    read(path, whole[:place])
    flipped = bytearray(whole)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    read(path, bytes(flipped))
    packed = gzip.compress(whole, mtime=0)
    read(path, packed[: place % len(packed)])


@JSON
@fuzz
@given(data=st.data(), word=st.sampled_from(WORDS) | st.text(max_size=20))
def test_words_anywhere(path: Path, kind: str, data: st.DataObject, word: str) -> None:
    whole = TEXTS[kind]
    place = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, 20))
    noise = word.encode("utf-8", "surrogatepass")
    read(path, whole[:place] + noise + whole[place + length :])


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@fuzz
@given(data=st.data(), value=values)
def test_any_argument_of_a_collective(path: Path, data: st.DataObject, value: object) -> None:
    node = make.params("allreduce", 1, 100)
    places = [node, node["inputs"], node["inputs"]["values"], node["inputs"]["types"]]
    places += [node["inputs"]["values"][0][0], *node["attrs"]]
    fields = data.draw(st.sampled_from(places))
    keys = range(len(fields)) if isinstance(fields, list) else sorted(fields)
    fields[data.draw(st.sampled_from(list(keys)))] = value
    told = make.node("## process_group:init ##", [json.dumps([value])], ["String"])
    read(path, make.execution_trace([told, make.groups(4), node]))


@fuzz
@given(data=st.data(), value=values)
def test_any_field_of_a_record(path: Path, data: st.DataObject, value: object) -> None:
    record = make.communicator(1, 4) | make.collective(1, 1 << 20, 100) | {"dump_stats": {}}
    fields = data.draw(st.sampled_from([record, *record.values()]))
    fields[data.draw(st.sampled_from([*fields, "coll_dropped_total"]))] = value
    read(path, INSPECTOR + b"\n" + json.dumps(record).encode())


@fuzz
@given(data=st.binary(max_size=256))
@example(b"{" * 100_000)
@example(b'{"inspector_output_format_version":' * 50_000)
@example(b'{"schema": "1.1.1-chakra.0.0.4", "nodes": [' + b'{"id":' * 50_000)
@example(b"SQLite format 3\x00")
def test_anything_at_all(path: Path, data: bytes) -> None:
    read(path, data)
    read(path, b'{"metadata": {"inspector_output_format_version": ""}}' + data)
    read(path, b'{"schema": "1.1.1-chakra.0.0.4", "nodes": [' + data)
    read(path, b"SQLite format 3\x00" + data + b"StringIds")


@pytest.mark.timed
def test_many_collectives_are_read_in_chunks(path: Path) -> None:
    """Rows that are made one by one take 100 us and 5 kB each, and the file is read three times."""
    span = make.node("gloo:all_reduce", [], []) | {"id": 1, "ctrl_deps": 1}  # its own parent
    path.write_bytes(make.execution_trace([make.groups(2), *[span] * 30_000]))
    begun = time.process_time()
    (trace,) = read(path) or []
    assert time.process_time() - begun < 4
    assert len(trace.collectives) == 30_000


@pytest.mark.parametrize("levels", [900, 1_000_000])
@pytest.mark.parametrize("name", ["record_param_comms", "gloo:all_reduce"])
def test_arguments_nested_without_end(path: Path, name: str, levels: int) -> None:
    node = json.dumps(make.node(name, ["here"], ["String"]))
    nested = node.replace('"here"', "[" * levels + "]" * levels, 1).encode()
    read(
        path,
        make.execution_trace([make.groups(2)]).replace(
            b'"nodes": [', b'"nodes": [' + nested + b", "
        ),
    )


def test_tensors_nested_deeper_than_python_calls() -> None:
    """From 3.12 on msgspec decodes deeper lists than Python's own calls may go."""
    nested = make.tensor(7)
    for _ in range(5_000):
        nested = [nested]
    node = Node(name="gloo:all_reduce", inputs=[nested])
    (call,) = NodeCalls(GroupTable()).of(node)
    assert call.elements == 7


@fuzz
@given(cut=st.integers(0, 2**20), place=st.integers(0, 2**20), noise=st.binary(max_size=64))
def test_a_damaged_database(path: Path, cut: int, place: int, noise: bytes) -> None:
    whole = export()
    place %= len(whole)
    read(path, whole[: cut % len(whole)])
    read(path, whole[:place] + noise + whole[place + len(noise) :])
    read(path, gzip.compress(whole, 1)[: cut % 4000])


@fuzz
@given(page=st.integers(0, 2**10), other=st.integers(0, 2**10))
def test_pages_that_stand_in_for_others(path: Path, page: int, other: int) -> None:
    whole, size = bytearray(export()), 4096
    page, other = page % (len(whole) // size), other % (len(whole) // size)
    whole[page * size : (page + 1) * size] = whole[other * size : (other + 1) * size]
    read(path, bytes(whole))


def test_damage_that_a_message_of_sqlite_quotes(path: Path) -> None:
    columns = b"CREATE TABLE StringIds ("
    assert read(path, export().replace(columns, columns[:-1] + b"\x80", 1)) is None


odd = st.none() | st.floats() | st.binary(max_size=9) | st.sampled_from(["x", "7", ""])


@fuzz
@given(row=st.lists(st.integers(-(2**63), 2**63 - 1) | odd, min_size=7, max_size=7))
def test_any_value_in_a_row(path: Path, row: list[object]) -> None:
    path.write_bytes(export())
    with sqlite3.connect(path) as file:
        file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?,?,?)", row)
        file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?)", row[:5])
        file.execute("INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (?,?,?,?)", row[:4])
        fields = "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET offset = ? WHERE schemaId = 2"
        file.execute(fields, row[4:5])
        query = "INSERT INTO NVTX_EVENTS (start, globalTid, text, binaryData) VALUES (?,?,?,?)"
        file.execute(query, [row[0], row[1], "ncclAllGather", row[5]])
    file.close()
    read(path)


def hostile(path: Path, *statements: str) -> list[RankTrace] | None:
    path.write_bytes(export())
    with sqlite3.connect(path) as file:
        for statement in statements:
            file.execute(statement)
    file.close()
    return read(path)


@pytest.mark.timed
def test_views_and_generated_columns_are_never_run(path: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    columns = f"SELECT i start, i end, 0 deviceId FROM ({endless})"
    view = f"CREATE VIEW CUPTI_ACTIVITY_KIND_MEMSET AS {columns}"
    name = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
    generated = f"CREATE TABLE {name} (start, deviceId, end AS (start + 1))"
    trigger = "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END"
    filled = f"INSERT INTO {name} (start, deviceId) VALUES (1, 0)"
    begun = time.process_time()
    (trace,) = hostile(path, view, generated, trigger, filled) or []
    assert time.process_time() - begun < 5  # the view has no end
    assert trace.device is not None
    assert len(trace.device) == 121


def named_often(path: Path, name: str, rows: int) -> None:
    """An export with a name that is stored once and stands in many rows."""
    path.write_bytes(export())
    with sqlite3.connect(path) as file:
        file.execute("INSERT INTO StringIds VALUES (5000, ?)", [name])
        query = "INSERT INTO NVTX_EVENTS (start, end, globalTid, textId) VALUES (?, ?, 1, 5000)"
        file.executemany(query, [(i, i + 1) for i in range(rows)])
    file.close()


def test_a_long_name_in_many_rows_takes_no_memory(path: Path) -> None:
    named_often(path, "step 1" + "x" * 400_000, 300)
    tracemalloc.start()
    try:
        read(path)
        assert tracemalloc.get_traced_memory()[1] < 40e6
    finally:
        tracemalloc.stop()


@pytest.mark.timed
def test_a_long_name_in_many_rows_takes_bounded_time(path: Path) -> None:
    named_often(path, "step 1" + "x" * 900_000, 50_000)
    begun = time.process_time()
    traces = read(path) or []
    assert time.process_time() - begun < 10  # it is opened three times
    assert all(trace.trailer is None for trace in traces)


def test_large_values_where_numbers_belong_take_no_memory(path: Path) -> None:
    large = b"x" * 500_000
    path.write_bytes(export())
    with sqlite3.connect(path) as file:
        row = [large] * 7
        file.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?,?,?)", [row] * 9)
    file.close()
    tracemalloc.start()
    try:
        (trace,) = read(path) or []
        assert tracemalloc.get_traced_memory()[1] < 15e6
    finally:
        tracemalloc.stop()
    assert (len(trace.steps), trace.broken_lines) == (9, 9)


def bomb(levels: int = 17, children: int = 300) -> bytes:
    """An export whose table of kernels has pages that each name the next one 300 times."""
    whole, size = bytearray(export()), 4096
    with sqlite3.connect(":memory:") as file:
        file.deserialize(bytes(whole))
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'"
        ((root,),) = file.execute(query)
    file.close()
    leaf = whole[(root - 1) * size : root * size]
    first = len(whole) // size + 1
    pages = [page_of(first + i + 1, children, size) for i in range(levels)]
    whole[(root - 1) * size : root * size] = page_of(first, children, size)
    whole += b"".join(pages) + leaf
    whole[28:32] = (len(whole) // size).to_bytes(4, "big")
    return bytes(whole)


def page_of(child: int, children: int, size: int) -> bytes:
    """An interior page of a table, with the same child all over."""
    cells = [child.to_bytes(4, "big") + b"\x01"] * children
    places = [size - 5 * (i + 1) for i in range(children)]
    head = bytes([5, 0, 0]) + children.to_bytes(2, "big") + places[-1].to_bytes(2, "big") + b"\0"
    head += child.to_bytes(4, "big") + b"".join(place.to_bytes(2, "big") for place in places)
    return head + bytes(places[-1] - len(head)) + b"".join(cells)


@pytest.mark.timed
def test_a_tree_of_pages_that_grows_without_end(path: Path) -> None:
    """Interior pages that name their children a hundred times make rows that no disk holds."""
    path.write_bytes(bomb())
    begun = time.process_time()
    read(path)
    assert time.process_time() - begun < 60


def test_a_bomb_is_refused(path: Path) -> None:
    data = export()
    path.write_bytes(gzip.compress(data + bytes(1 << 27), 9))
    with pytest.raises(TraceError, match="expands to more than 300 times its size on disk"):
        find_run([path])
