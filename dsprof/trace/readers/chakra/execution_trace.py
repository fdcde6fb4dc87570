"""Reads execution traces in JSON: what torch's ExecutionTraceObserver writes (Chakra's schema).

Only the nodes that communicate are read. A trace says what was called, in which order and with
which tensors, and nothing of when: its collectives have no times. Schemas 1.0.1 to 1.1.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from dsprof.files.decoding import UNDECODABLE
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers import untrusted_values
from dsprof.trace.readers.base import Facts, OneRankReader, Reader, foreign_header, rank_in_name
from dsprof.trace.readers.call_rows import CallRows, GroupTable
from dsprof.trace.readers.chakra.execution_nodes import OF_INTEREST, Node, NodeCalls
from dsprof.trace.readers.json_pieces import Pieces
from dsprof.trace.schema import Header, Note, Trailer
from dsprof.trace.source import Source

RUN_KEY = "execution trace"
_SCHEMA = re.compile(rb'"schema"\s*:\s*"(\d+\.\d+\.\d+(?:-chakra[\d.]*)?)"')
_NODES = re.compile(rb'"nodes"\s*:\s*\[')
_SEAM = re.compile(
    rb'(?<=\})\s*,\s*(?=\{\s*"(?:id"\s*:|name"\s*:\s*"(?:[^"\\]|\\.){0,4096}"\s*,\s*"id"\s*:))'
)
_END = re.compile(rb'\]\s*,\s*"finish_ts"\s*:\s*\d+\s*\}\s*$')
_NUMBERS = re.compile(r"\d{1,7}")
_HEAD_BYTES = 1 << 16


class ExecutionTraceReader(OneRankReader):
    """Reads the file of one rank."""

    name = "execution trace"
    tells = Facts.TIMELINE
    order = 50

    def recognises(self, start: bytes) -> bool:
        head = start[:_HEAD_BYTES].lstrip(b"\xef\xbb\xbf \r\n\t")
        nodes = _NODES.search(head)
        return head[:1] == b"{" and nodes is not None and bool(_SCHEMA.search(head, 0, nodes.end()))

    def read_trace(self, path: Path) -> RankTrace:
        rows, groups = CallRows(), GroupTable()
        calls = NodeCalls(groups)
        with Source(path) as source:
            nodes = _Nodes(source, str(path))
            rows.add(chain.from_iterable(map(calls.of, nodes)))
            trace = RankTrace(str(path), _header(path, nodes.head, calls), rows.build())
            trace.nbytes = source.nbytes
        trace.groups = calls.named(groups.by_number())
        trace.broken_lines = nodes.pieces.broken
        trace.notes = [Note("execution traces record the order of communication, not its times")]
        if nodes.is_closed:
            trace.trailer = Trailer(reason="exit")
        return trace


class _Nodes:
    """The nodes of an open file that communicate, or create groups; `head` precedes them."""

    def __init__(self, source: Source, where: str) -> None:
        self.pieces = Pieces(source, where, _SEAM)
        self.head = b""
        self.is_closed = False

    def __iter__(self) -> Iterator[Node]:
        """Yield those nodes."""
        for piece in self.pieces:
            text = piece
            if not self.head and (begin := _NODES.search(piece)):
                self.head, text = piece[: begin.start()], piece[begin.end() :]
            if end := _END.search(text, max(0, len(text) - 256)):
                self.is_closed, text = True, text[: end.start()]
            if OF_INTEREST.search(text) and (node := self.pieces.decoded(text, Node)) is not None:
                yield node


def _header(path: Path, head: bytes, calls: NodeCalls) -> Header:
    facts = _facts(head)
    rank = calls.rank if calls.rank >= 0 else _rank_in_name(path, calls.world_size)
    return foreign_header(
        path,
        RUN_KEY,
        rank,
        max(calls.world_size, rank + 1) if calls.world_size else 0,
        pid=untrusted_values.pid(facts.get("pid")),
        started_epoch_ns=_epoch_ns(facts.get("time")),
        backend=calls.backend,
        device=calls.device,
        versions={"execution trace": str(facts.get("schema", ""))[:40]},
    )


def _rank_in_name(path: Path, world_size: int) -> int:
    """Return the rank in a name, also that of "et_3.json" where there are so many ranks."""
    if (rank := rank_in_name(path)) >= 0:
        return rank
    numbers = _NUMBERS.findall(path.name.split(".json")[0])
    return int(numbers[-1]) if numbers and int(numbers[-1]) < world_size else 0


def _facts(head: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(head.rstrip(b", \r\n\t") + b"}", type=dict[str, Any])
    except UNDECODABLE:
        return {}


def _epoch_ns(text: object) -> int:
    """Return a time of the writer's own zone as if it were UTC's: it is at most a day wrong."""
    try:
        moment = datetime.strptime(str(text), "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return 0
    return max(int(moment.timestamp()), 0) * 10**9


READER: Reader = ExecutionTraceReader()
