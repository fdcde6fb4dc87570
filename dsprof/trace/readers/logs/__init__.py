"""Reads logs of training: what NCCL, RCCL, torch and DeepSpeed say of themselves, rank by rank."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dsprof.errors import TraceError
from dsprof.files.inputs import FileStatus
from dsprof.trace.rank_log import LogStarts, RankLog, joined
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers.base import Facts, Reader, foreign_header, rank_in_name
from dsprof.trace.readers.logs.lines import MarkedLines
from dsprof.trace.readers.logs.printed_config import engine_of
from dsprof.trace.readers.logs.records import logged
from dsprof.trace.readers.logs.scan import MARKS, LoggedRank, LogScan
from dsprof.trace.schema import Header, Note, Trailer
from dsprof.trace.source import Source, size_of

_SIGNS = re.compile(
    # ncclras says with what NCCL was compiled.
    rb"[NR]CCL (?:INFO|WARN|CALL|TRACE|version(?! \S+ compiled )) |NCCL_DEBUG=|comm op: "
    rb"|Comm\. Op +Message Size|out of memory\. Tried to allocate"
    rb"|atchdog (?:caught collective|at work|got stuck|thread terminated with exception)"
    rb"|failed to pass monitoredBarrier in |Heartbeat monitor timed out"
    rb"|Rendezvous(?:Timeout|Connection)Error|store based barrier on rank: "
    rb"|Received a dump signal due to "
    rb"|(?:client|server) socket has failed to (?:connect|listen) |seconds waiting for clients\. "
    rb"|client socket has timed out after |Received \d+ death signal, shutting down workers"
    rb"|TCPStore server has shut down| failed on SocketImpl\(| by GPU node-\d|NCCL [Ee]rror \d+: "
    rb"|: Test (?:NCCL|CUDA) failure |\bfailed \(exitcode: -?\d+\) local_rank: "
    rb"|CalledProcessError: Command |Process \d+ got signal: \d|Worker exit type: SYSTEM_ERROR"
    rb"|: rank \d+ died from signal |BAD TERMINATION OF ONE OF YOUR|\] Caught signal \d+ \("
    rb"|emory pressure \(OOM\)|: line \d+: +\d+ (?:Killed|Segmentation fault|Bus error|Aborted)\b"
    rb"|^\[\d{4}-\d\d-\d\d [\d:,]+\] \[(?:INFO|WARNING)\] \[\w+\.py:\d+:|DeepSpeed info: version="
    rb"|\balgbw +busbw\b|\| payload \| +busbw +\||\bBusBW \(Gbps\)"
    rb"|^# Collective test starting: |\balgo throughput: \d"
    rb"|RunningAvgSamplesPerSec=|\d, SamplesPerSec="
    rb"|Setting OMP_NUM_THREADS environment variable for each process"
    rb"|\berror: \*\*\* (?:JOB|STEP) |Root Cause \(first observed failure\)"
    rb"|\d\] Signal: | noticed that process rank |\] exits with return code = "
    rb"|^(?:\d+: )?srun: error: \S+: tasks? "
    rb"|\berror: Detected \d+ oom[-_]kill event|\[rank\d+\]: Traceback \(most recent call last\):"
    rb"|Detected mismatch between collectives on ranks",
    re.M,
)
_LEFT_OUT = (
    "{name} names more processes or facts than are kept of one log: {lines:,} lines are left out; "
    "give the log of fewer ranks"
)
_MOST_ERRORS = 4


@dataclass(frozen=True, slots=True)
class _LogFile:
    """The contents of one file; never changed, for it is kept."""

    ranks: tuple[LoggedRank, ...]
    world_size: int
    checksum: int
    is_nccl: bool
    deepspeed: str
    config: dict[str, Any]  # of DeepSpeed, as the user wrote it
    left_out: int
    starts: list[LogStarts]  # one, if it holds several
    nbytes: int  # unpacked


class LogReader:
    """Reads one log, of any number of ranks."""

    name = "log"
    tells = Facts.LOG
    order = 90

    def recognises(self, start: bytes) -> bool:
        """Say whether it is text in which a library that is known speaks."""
        if start[:1] in (b"{", b"["):  # JSON, a log that is in it, or one that begins with some
            start = logged(start.decode("utf-8", "replace")).encode()
        return start[:1] != b"\x80" and _SIGNS.search(start) is not None

    def read_headers(self, path: Path) -> Sequence[Header]:
        """Read the file: only its end tells which ranks it is of."""
        return [trace.header for trace in self.read_traces(path)]

    def read_traces(self, path: Path) -> Iterable[RankTrace]:
        """Read the file, one trace a rank, which contains nothing but the log."""
        with Source(path) as source:
            status = source.status
        found = _scan(path, status)
        return (_trace(path, found, one) for one in found.ranks)


def _device(found: _LogFile, log: RankLog) -> str:
    for failed in log.out_of_memory:
        return failed.kind.lower() if failed.kind in ("NPU", "XPU") else "cuda"
    return "cuda" if found.is_nccl else ""


def _trace(path: Path, found: _LogFile, one: LoggedRank) -> RankTrace:
    header = foreign_header(
        path,
        f"log {found.checksum:08x}",
        one.rank,
        found.world_size,
        host=one.host,
        pid=one.pid,
        backend="nccl" if found.is_nccl else "",
        versions={"deepspeed": found.deepspeed} if found.deepspeed else {},
        device=_device(found, one.log),
    )
    is_first = one is found.ranks[0]
    has_engine = found.config and is_first  # one rank prints it
    left_out = (
        is_first and found.left_out and _LEFT_OUT.format(name=path.name, lines=found.left_out)
    )
    return RankTrace(
        path=str(path),
        header=header,
        engines={1: engine_of(found.config)} if has_engine else {},
        trailer=Trailer(reason="end of the log"),
        log=joined(RankLog(nbytes=found.nbytes, starts=found.starts if is_first else []), one.log),
        notes=[Note(note) for note in (one.note, left_out) if note],
        nbytes=size_of(path),
    )


def _scan_from(path: Path, at_bytes: int) -> tuple[LogScan, MarkedLines]:
    """Go through the lines that begin at a place or behind it."""
    scan = LogScan()
    with Source(path) as source:
        lines = MarkedLines(source, MARKS)
        for line in lines:
            if lines.at_bytes >= at_bytes:
                lines.takes_all = scan.take(line, lines.at_bytes)
    scan.starts.end(lines.at_bytes)
    return scan, lines


def _starts(path: Path, scan: LogScan) -> LogStarts:
    """Say what went wrong before the last start."""
    ranks, _ = scan.ranks(-1)
    begin = scan.starts.last_at_bytes
    errors = [
        mark.text if one.log.is_stray(mark) else f"{mark.text} (rank {one.rank})"
        for one in ranks
        for mark in one.log.marks
        if mark.is_error and mark.at_bytes < begin
    ]
    return LogStarts(path.name, scan.starts.count, begin, tuple(errors[:_MOST_ERRORS]))


@lru_cache(maxsize=256)  # headers and traces are asked for one after the other
def _scan(path: Path, _status: FileStatus) -> _LogFile:
    scan, lines = _scan_from(path, 0)
    several: list[LogStarts] = []
    if scan.starts.count > 1:
        several = [_starts(path, scan)]
        scan, lines = _scan_from(path, scan.starts.last_at_bytes)
    ranks, world_size = scan.ranks(rank_in_name(path))
    if not ranks and several:
        ranks = [LoggedRank(0, "", 0, RankLog())]  # what is said of it is before its last start
    if not ranks:
        raise TraceError(
            f"{path}: nothing to judge in this log; dsprof reads what NCCL, RCCL, and torch's "
            "allocator and watchdog write, and DeepSpeed's configuration, timer and comms logger; "
            "set NCCL_DEBUG=INFO to see how ranks connect"
        )
    return _LogFile(
        tuple(ranks),
        world_size,
        lines.checksum,
        scan.is_nccl,
        scan.deepspeed,
        scan.config.written,
        scan.left_out,
        several,
        lines.at_bytes,
    )


READER: Reader = LogReader()
