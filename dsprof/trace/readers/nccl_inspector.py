"""Reads what the NCCL Inspector writes: JSON objects, one a collective, of one process.

A record says how long a collective took on the device, never when: without its verbose mode there
are no times of the day. Up to version 4.2 each record names its communicator; from 4.3 on a
`dump_stats` record names that of the records behind it. Source: NVIDIA/nccl,
plugins/profiler/inspector/README.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from dsprof.errors import TraceError
from dsprof.findings.wording import plural
from dsprof.trace.collectives import SHARDED, family
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers.base import Facts, OneRankReader, Reader, foreign_header
from dsprof.trace.readers.call_rows import Call, CallRows, GroupTable
from dsprof.trace.readers.json_pieces import BETWEEN_OBJECTS, Pieces
from dsprof.trace.schema import LARGEST_WORLD, Header, Note, Trailer
from dsprof.trace.source import Source

RUN_KEY = "NCCL Inspector"
_MARK = re.compile(rb'"inspector_output_format_version"\s*:')
_LONGEST_NS = 10**16  # four months
_OF_HOST = "collective_cpu"
"""The source of a time that no kernel gave: from the call on the host to its completion."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _Communicator(msgspec.Struct, frozen=True):
    id: str = ""
    rank: _Count = 0
    n_ranks: _Count = 0
    nnodes: _Count = 0


class _Writer(msgspec.Struct):
    inspector_output_format_version: str = ""
    dump_timestamp_us: _Count = 0
    hostname: str = ""
    pid: _Count = 0


class _Collective(msgspec.Struct):
    coll: str = ""
    coll_sn: _Count = 0
    coll_msg_size_bytes: _Count = 0
    coll_exec_time_us: _Count = 0
    coll_timing_source: str = ""


class _PointToPoint(msgspec.Struct):
    """The same in the same order."""

    p2p: str = ""
    p2p_sn: _Count = 0
    p2p_msg_size_bytes: _Count = 0
    p2p_exec_time_us: _Count = 0
    p2p_timing_source: str = ""


class _Lost(msgspec.Struct):
    coll_dropped_total: _Count = 0
    p2p_dropped_total: _Count = 0


class _Record(msgspec.Struct):
    header: _Communicator | None = None
    metadata: _Writer | None = None
    coll_perf: _Collective | None = None
    p2p_perf: _PointToPoint | None = None
    dump_stats: _Lost | None = None


class InspectorReader(OneRankReader):
    """Reads the file of one process."""

    name = "NCCL Inspector dump"
    tells = Facts.TIMELINE
    order = 40

    def recognises(self, start: bytes) -> bool:
        bare = start.lstrip(b"\xef\xbb\xbf \r\n\t")
        return bare[:1] == b"{" and _MARK.search(bare) is not None

    def read_header(self, path: Path) -> Header:
        """Read all records: the largest communicator, whose rank counts, may come last."""
        with Source(path) as source:
            dump = _Dump(source, str(path))
            for _ in dump:
                pass
        return dump.header(path)

    def read_trace(self, path: Path) -> RankTrace:
        rows = CallRows()
        with Source(path) as source:
            dump = _Dump(source, str(path))
            rows.add(dump)
            trace = RankTrace(str(path), dump.header(path), rows.build())
            trace.nbytes = source.nbytes
        trace.groups = dump.groups.by_number()
        trace.broken_lines = dump.pieces.broken
        trace.knows_durations = True
        trace.trailer = Trailer(reason="exit")
        trace.is_sampled = dump.lost > 0
        trace.notes = [Note(text) for text in dump.notes(path)]
        return trace


class _Dump:
    """The collectives of an open file, and what was seen beside them."""

    def __init__(self, source: Source, where: str) -> None:
        self.pieces = Pieces(source, where, BETWEEN_OBJECTS)
        self._here = self._largest = _Communicator()
        self._writer = _Writer()
        self._end_ns = 0
        self._started_us = 0
        self._timed_by_host = 0
        self._dropped: dict[_Communicator, int] = {}
        self.groups = GroupTable()

    def __iter__(self) -> Iterator[Call]:
        """Yield the collectives, set one behind the other: when each ran is not in the file.

        Raises:
            TraceError: most records are broken.
        """
        for piece in self.pieces:
            if (record := self.pieces.decoded(piece, _Record)) is None:
                continue
            self._note(record)
            if (perf := record.coll_perf or record.p2p_perf) is not None:
                yield self._call(*msgspec.structs.astuple(perf))

    @property
    def lost(self) -> int:
        """Records that the Inspector itself dropped."""
        return sum(self._dropped.values())

    def header(self, path: Path) -> Header:
        """Say who wrote the file: its rank in the largest communicator counts as its rank."""
        who, writer = self._largest, self._writer
        if not who.n_ranks:
            raise TraceError(f"{path}: a dump of the NCCL Inspector without a single whole record")
        if not who.rank < who.n_ranks <= LARGEST_WORLD:
            raise TraceError(
                f"{path}: invalid rank {who.rank} for world size {who.n_ranks}: the file is damaged"
            )
        return foreign_header(
            path,
            RUN_KEY,
            who.rank,
            who.n_ranks,
            host=writer.hostname,
            pid=writer.pid,
            started_epoch_ns=self._started_us * 1000,
            backend="nccl",
            device="cuda",
            versions={"NCCL Inspector": writer.inspector_output_format_version},
        )

    def notes(self, path: Path) -> Iterator[str]:
        """Say what the file cannot tell."""
        yield (
            "NCCL Inspector tells how long collectives took, not when they ran, and by default "
            "leaves out messages below 8 KiB"
        )
        if self._timed_by_host:
            calls = plural(self._timed_by_host, "call")
            yield f"NCCL Inspector timed {calls} of {path.name} on the host: excluded from speeds"
        if self.lost:
            yield f"NCCL Inspector dropped {self.lost:,} records of {path.name}: its ring was full"

    def _note(self, record: _Record) -> None:
        if record.metadata is not None:
            self._writer = record.metadata
            self._started_us = self._started_us or record.metadata.dump_timestamp_us
        if record.header is not None:
            self._here = record.header
            self._largest = max(self._largest, record.header, key=lambda one: one.n_ranks)
        if record.dump_stats is not None:
            stats = record.dump_stats
            self._dropped[self._here] = stats.coll_dropped_total + stats.p2p_dropped_total

    def _call(self, op: str, seq: int, nbytes: int, took_us: int, source: str) -> Call:
        here = self._here
        total = min(nbytes * (here.n_ranks if family(op) in SHARDED else 1), 2**60)
        label = "communicator" + (f" on {here.nnodes} nodes" if here.nnodes > 1 else "")
        group = self.groups.number(here.id, label, [], here.n_ranks)
        start_ns = self._end_ns
        self._end_ns = min(start_ns + took_us * 1000, _LONGEST_NS)
        self._timed_by_host += source == _OF_HOST
        end_ns = 0 if source == _OF_HOST else self._end_ns
        return Call(op, group, 0, total, "", 0, start_ns, end_ns, seq)


READER: Reader = InspectorReader()
