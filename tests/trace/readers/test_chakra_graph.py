"""Graphs for simulators are known by content, and refused with what to give instead."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dsprof.errors import TraceError
from dsprof.trace.readers import READERS, reader_of
from dsprof.trace.readers.chakra_graph import ChakraGraphReader
from dsprof.trace.run import find_run
from tests.factories.trace_files import write_run


def message(fields: bytes) -> bytes:
    """A message behind its length, below 16 KB."""
    size = len(fields)
    return (bytes([size]) if size < 128 else bytes([size & 0x7F | 0x80, size >> 7])) + fields


def text(key: int, value: bytes) -> bytes:
    return bytes([key, len(value)]) + value


METADATA = message(text(0x0A, b"1.1.1-chakra.0.0.4") + text(0x12, b"x" * 120))
NODE = message(b"\x08\x07" + text(0x12, b"nccl:all_reduce") + b"\x18\x07")


@pytest.mark.parametrize("node", [NODE, message(text(0x12, b"node 0") + b"\x18\x07")])
@pytest.mark.parametrize("packed", [False, True])
def test_a_graph_alone_is_refused_in_one_line(tmp_path: Path, node: bytes, packed: bool) -> None:
    path = tmp_path / "job.3.et"
    data = METADATA + node
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(TraceError, match="ExecutionTraceObserver") as refusal:
        find_run([path])
    assert "\n" not in str(refusal.value)


def test_beside_traces_it_is_listed(tmp_path: Path) -> None:
    files = write_run(tmp_path)
    graph = tmp_path / "job.0.et"
    graph.write_bytes(METADATA + NODE)
    run = find_run([tmp_path])
    assert run.files == tuple(files)
    assert [(one.path, "Chakra graph" in one.reason) for one in run.strangers] == [(graph, True)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x80" * 40,
        METADATA,
        METADATA[:9],
        message(text(0x0A, b"hello")) + NODE,
        message(text(0x0A, b"1.2") + b"x")[:-2] + NODE,
        METADATA + b"\x05\x20abcd",
        b"\n\n0.1 \x08",
    ],
)
def test_other_files_are_not_taken_for_one(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "any"
    path.write_bytes(data)
    assert not isinstance(reader_of(path), ChakraGraphReader)


def test_no_other_reader_takes_it() -> None:
    assert [r.name for r in READERS if r.recognises(METADATA + NODE)] == ["Chakra graph"]
