"""The readers of exports against files made to exhaust them."""

from __future__ import annotations

import gzip
import json
import sqlite3
import tracemalloc
from pathlib import Path

import pytest

from dsprof.errors import TraceError
from dsprof.trace.dumps.nccl_ras import communicators
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers.call_rows import GroupTable
from dsprof.trace.readers.chakra.execution_nodes import Node, NodeCalls
from dsprof.trace.readers.host_calls import bare
from dsprof.trace.run import find_run
from tests.factories import exports as make
from tests.fuzzing.formats import FORMATS, export, read
from tests.speed import at_most

NSYS, EXECUTION = FORMATS["nsys"](), FORMATS["execution"]()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "export"


@pytest.mark.parametrize("kind", ["inspector", "execution"])
def test_whole_files_are_read_whole(path: Path, kind: str) -> None:
    one = FORMATS[kind]()
    for data in (one.whole, gzip.compress(one.whole)):
        (trace,) = read(one, path, data) or []
        assert (trace.rank, trace.broken_lines, trace.trailer is not None) == (1, 0, True)


def test_a_whole_export_is_read_whole(path: Path) -> None:
    (trace,) = read(NSYS, path, export()) or []
    assert trace.device is not None
    assert (len(trace.device), len(trace.steps), trace.broken_lines) == (121, 9, 0)


@pytest.mark.alone
def test_many_collectives_are_read_in_chunks(path: Path) -> None:
    """Rows that are made one by one take 100 us and 5 kB each, and the file is read three times."""
    span = make.node("gloo:all_reduce", [], []) | {"id": 1, "ctrl_deps": 1}  # its own parent
    path.write_bytes(make.execution_trace([make.groups(2), *[span] * 30_000]))
    with at_most(40):
        (trace,) = read(EXECUTION, path) or []
    assert len(trace.collectives) == 30_000


@pytest.mark.parametrize("levels", [900, 1_000_000])
@pytest.mark.parametrize("name", ["record_param_comms", "gloo:all_reduce"])
def test_arguments_nested_without_end(path: Path, name: str, levels: int) -> None:
    node = json.dumps(make.node(name, ["here"], ["String"]))
    nested = node.replace('"here"', "[" * levels + "]" * levels, 1).encode()
    read(
        EXECUTION,
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


def hostile(path: Path, *statements: str) -> list[RankTrace] | None:
    path.write_bytes(export())
    with sqlite3.connect(path) as file:
        for statement in statements:
            file.execute(statement)
    file.close()
    return read(NSYS, path)


@pytest.mark.alone
def test_views_and_generated_columns_are_never_run(path: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    columns = f"SELECT i start, i end, 0 deviceId FROM ({endless})"
    view = f"CREATE VIEW CUPTI_ACTIVITY_KIND_MEMSET AS {columns}"
    name = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
    generated = f"CREATE TABLE {name} (start, deviceId, end AS (start + 1))"
    trigger = "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END"
    filled = f"INSERT INTO {name} (start, deviceId) VALUES (1, 0)"
    with at_most(50):  # the view has no end
        (trace,) = hostile(path, view, generated, trigger, filled) or []
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
        read(NSYS, path)
        assert tracemalloc.get_traced_memory()[1] < 40e6
    finally:
        tracemalloc.stop()


@pytest.mark.alone
def test_a_long_name_in_many_rows_takes_bounded_time(path: Path) -> None:
    named_often(path, "step 1" + "x" * 900_000, 50_000)
    with at_most(300):  # it is opened three times
        traces = read(NSYS, path) or []
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
        (trace,) = read(NSYS, path) or []
        assert tracemalloc.get_traced_memory()[1] < 15e6
    finally:
        tracemalloc.stop()
    assert (len(trace.steps), trace.broken_lines) == (9, 9)


def write_bomb(path: Path, levels: int = 17, children: int = 300) -> None:
    """Write an export whose table of kernels has pages that each name the next one 300 times."""
    whole, size = bytearray(export()), 4096
    path.write_bytes(whole)
    with sqlite3.connect(path) as file:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'"
        ((root,),) = file.execute(query)
    file.close()
    leaf = whole[(root - 1) * size : root * size]
    first = len(whole) // size + 1
    pages = [page_of(first + i + 1, children, size) for i in range(levels)]
    whole[(root - 1) * size : root * size] = page_of(first, children, size)
    whole += b"".join(pages) + leaf
    whole[28:32] = (len(whole) // size).to_bytes(4, "big")
    path.write_bytes(whole)


def page_of(child: int, children: int, size: int) -> bytes:
    """An interior page of a table, with the same child all over."""
    cells = [child.to_bytes(4, "big") + b"\x01"] * children
    places = [size - 5 * (i + 1) for i in range(children)]
    head = bytes([5, 0, 0]) + children.to_bytes(2, "big") + places[-1].to_bytes(2, "big") + b"\0"
    head += child.to_bytes(4, "big") + b"".join(place.to_bytes(2, "big") for place in places)
    return head + bytes(places[-1] - len(head)) + b"".join(cells)


@pytest.mark.alone
def test_a_tree_of_pages_that_grows_without_end(path: Path) -> None:
    """Interior pages that name their children a hundred times make rows that no disk holds."""
    write_bomb(path)
    with at_most(600):
        read(NSYS, path)


def test_a_bomb_is_refused(path: Path) -> None:
    data = export()
    path.write_bytes(gzip.compress(data + bytes(1 << 27), 9))
    with pytest.raises(TraceError, match="expands to more than 300 times its size on disk"):
        find_run([path])


@pytest.mark.alone
def test_no_name_takes_long() -> None:
    with at_most(4):
        assert bare("cuMemcpy" + "_v2" * 20_000 + "x").endswith("x")
        assert bare("cuMemcpyAsync_v2_ptsz") == "cuMemcpyAsync"


@pytest.mark.alone
def test_no_status_of_nccl_takes_long() -> None:
    with at_most(4):
        assert communicators('{"communicators_count": 1' + "\n" * 50_000 + "x}") is None
