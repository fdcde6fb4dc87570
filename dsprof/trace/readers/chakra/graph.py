"""Reads graphs in Chakra's protobuf (`.et`), which are made for simulators and by converters.

Metadata and then nodes, each behind its length. Nodes that communicate are read. Their times, where
there are any, were measured or modelled, which no graph says: they are not taken over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers import untrusted_values
from dsprof.trace.readers.base import Facts, OneRankReader, Reader, foreign_header, rank_in_name
from dsprof.trace.readers.call_rows import Call, CallRows, GroupTable
from dsprof.trace.readers.chakra.nodes import GraphCall, GraphCalls, attribute
from dsprof.trace.readers.chakra.protobuf import Messages, fields, varint
from dsprof.trace.schema import LARGEST_WORLD, Header, Note, Trailer
from dsprof.trace.source import Source, check_damage

RUN_KEY = "Chakra graph"
_VERSION, _ATTRIBUTES = 1, 2
_VERSION_TEXT = re.compile(rb"\d+(\.\d+){1,3}[\w.+-]*")
_NODE_KEYS = (b"\x08", b"\x12", b"\x18")
"""How a node begins: by its id, its name or its type, for a zero is not written."""

_NUMBER_IN_NAME = re.compile(r"\.(\d{1,7})\.et\b")
_NOTE = (
    "Chakra graphs record the order of communication, not its times; sizes are computed from the "
    "input of one rank, as in Chakra's converter and ASTRA-sim"
)
_SILENT = "no node of the graph is marked as communication: give what it was converted from"
_UNSIZED = "the group size of all-gathers is unknown, and so are the bytes they gather"


class ChakraGraphReader(OneRankReader):
    """Reads the file of one rank."""

    name = "Chakra graph"
    tells = Facts.TIMELINE
    order = 80

    def recognises(self, start: bytes) -> bool:
        with suppress(ValueError):
            size, begin = varint(start, 0)
            _, node = varint(start, begin + size)
            told = _metadata(start[begin : begin + size])
            named = str(told.get("version") or told.get("schema"))
            return start[node : node + 1] in _NODE_KEYS and _is_version(named.encode())
        return False

    def read_trace(self, path: Path) -> RankTrace:
        rows, table = CallRows(), GroupTable()
        calls = GraphCalls(table)
        with Source(path) as source:
            graph = _Graph(Messages(source), calls, str(path))
            rows.add(graph)
            trace = RankTrace(str(path), _header(path, graph.metadata, calls), rows.build())
            trace.nbytes = source.nbytes
        trace.groups = table.by_number()
        trace.broken_lines = graph.broken
        trace.notes = [Note(text) for text in _notes(trace, calls)]
        if not graph.messages.is_cut:
            trace.trailer = Trailer(reason="exit")
        return trace


class _Graph:
    """The calls of an open file; `metadata` precedes the nodes."""

    def __init__(self, messages: Messages, calls: GraphCalls, where: str) -> None:
        self._where = where
        self.messages = messages
        self.metadata: dict[str, int | str] = {}
        self._calls = calls
        self._undecodable = 0

    def __iter__(self) -> Iterator[Call]:
        """Yield the calls of the device; those of the host where the device made none.

        Converters keep a call of the host beside the kernels that it launched.
        """
        of_host: list[Call] | None = []
        for found in self._found():
            if not found.is_of_host:
                of_host = None
                yield found.call
            elif of_host is not None:
                of_host.append(found.call)
        yield from of_host or ()

    def _found(self) -> Iterator[GraphCall]:
        messages = iter(self.messages)
        self.metadata = _metadata(next(messages, b""))
        for number, message in enumerate(messages):
            try:
                call = self._calls.of(message)
            except ValueError:
                self._undecodable += 1
                check_damage(self._where, self._undecodable, number + 1 - self._undecodable)
                continue
            if call is not None:
                yield call

    @property
    def broken(self) -> int:
        """Nodes that could not be read."""
        return self._undecodable + self.messages.is_cut


def _notes(trace: RankTrace, calls: GraphCalls) -> Iterator[str]:
    """Say what the file cannot tell."""
    yield _NOTE
    if not len(trace.collectives):
        yield _SILENT
    if calls.has_unsized:
        yield _UNSIZED


def _metadata(message: bytes) -> dict[str, int | str]:
    """Return the version and the attributes of a graph, as far as they are whole."""
    told: dict[str, int | str] = {}
    with suppress(ValueError):
        for number, value in fields(message):
            if number == _VERSION and isinstance(value, bytes) and _is_version(value):
                told["version"] = value.decode()
            elif number in (_VERSION, _ATTRIBUTES) and isinstance(value, bytes):
                told |= dict([attribute(value)])
    return told


def _is_version(text: bytes) -> bool:
    return _VERSION_TEXT.fullmatch(text) is not None


def _header(path: Path, metadata: dict[str, int | str], calls: GraphCalls) -> Header:
    size = calls.groups.world_size
    version = str(metadata.get("version") or metadata.get("schema"))[:40]
    return foreign_header(
        path,
        RUN_KEY,
        _rank_in_name(path, size),
        size,
        pid=untrusted_values.pid(metadata.get("pid")),
        backend=calls.groups.backend,
        versions={"Chakra graph": version},
    )


def _rank_in_name(path: Path, world_size: int) -> int:
    """Return the rank in a name, as simulators want it ("job.3.et"), 0 if there is none."""
    if (rank := rank_in_name(path)) >= 0:
        return rank
    number = int(found[1]) if (found := _NUMBER_IN_NAME.search(path.name)) else 0
    return number if number < (world_size or LARGEST_WORLD) else 0


READER: Reader = ChakraGraphReader()
