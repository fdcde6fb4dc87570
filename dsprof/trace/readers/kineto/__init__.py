"""Reads what torch.profiler exports: the trace of one rank, of NVIDIA and of AMD devices.

Times in a file are microseconds since `baseTimeNanoseconds`, or since the epoch where there is
none. A trace has no closing line of its own: a file that ends behind its last event is whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dsprof.errors import TraceError
from dsprof.files.decoding import UNDECODABLE
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers.base import Facts, OneRankReader, Reader, foreign_header, rank_in_name
from dsprof.trace.readers.kineto.chrome import Events
from dsprof.trace.readers.kineto.columns import EventColumns
from dsprof.trace.readers.kineto.events import (
    EVENT,
    MERGED,
    Distributed,
    Metadata,
    TraceEvent,
    is_relabelled,
)
from dsprof.trace.schema import Header, Trailer
from dsprof.trace.source import Source, read_start

RUN_KEY = "torch.profiler"
_EPOCH_US = 1e15  # times above count from the epoch
_TAIL_BYTES = 1 << 16
_MARK = re.compile(
    rb'"(schemaVersion|deviceProperties|distributedInfo|traceEvents)"\s*:|'
    rb'"ph"\s*:\s*"'
)
_WRITER_IN_NAME = re.compile(r"(?P<host>[\w.-]+)_(?P<pid>\d{1,9})\.\d{10,}\.pt\.trace\.json")
"""Names of files by `tensorboard_trace_handler`, unless it is given another name."""

_PROCESS_OF_HOST = (
    rb'"cat"\s*:\s*"(?:cpu_op|cuda_runtime|user_annotation|python_function|Operator|Runtime)"'
    rb'[^{}]{0,500}?"pid"\s*:\s*"?%d\b'
)
_PROVEN_WITHIN_BYTES = 1 << 20

_EMPTY = (
    "a profile without operators or kernels: the profiler recorded nothing; check that its "
    "schedule reaches active steps and that the loop calls step() of the profiler"
)
_NONE = (
    "not a usable trace: no event has a time and a duration; give the file that torch.profiler "
    "exported, or a trace*.rank*.json file of dsprof"
)
_CUT = (
    "truncated or damaged before the first event that has a time and a duration; give the "
    "original file"
)


class KinetoReader(OneRankReader):
    """Reads one file of `torch.profiler`."""

    name = "PyTorch profiler trace"
    tells = Facts.TIMELINE | Facts.DEVICE
    order = 20

    def recognises(self, start: bytes) -> bool:
        bare = start.lstrip(b"\xef\xbb\xbf \r\n\t")
        return bare[:1] in (b"{", b"[") and _MARK.search(bare) is not None

    def read_header(self, path: Path) -> Header:
        """Read what precedes the events, and what follows them where that does not suffice."""
        with Source(path) as source:
            events = Events(source, str(path), EVENT)
            head, chunks = _metadata(events.head), iter(events)
            first = next(filter(_first_us, chunks), [])
            first_us = _first_us(first)
            if not first_us:
                why = _EMPTY if b"schemaVersion" in events.head else _NONE
                if events.broken or not events.is_closed:
                    why = _CUT
                raise TraceError(f"{path}: {why}")
            if any(map(is_relabelled, first)):
                raise TraceError(f"{path}: {MERGED}")
            if head.distributed is None or (not head.base_ns and first_us < _EPOCH_US):
                tail = _tail(path)
                if tail is None:
                    for _ in chunks:
                        pass
                    tail = _metadata(b"{" + events.tail.lstrip(b", \r\n\t"))
                head = _joined(head, tail)
        return _header(path, head, first_us)

    def read_trace(self, path: Path) -> RankTrace:
        with Source(path) as source:
            events = Events(source, str(path), EVENT)
            columns: EventColumns | None = None
            first_us = 0.0
            for chunk in events:
                first_us = first_us or _first_us(chunk)
                if columns is None and first_us:
                    columns = EventColumns(first_us)
                if columns is not None:
                    columns.add(chunk)
            meta = _metadata(events.head)
            meta = _joined(meta, _metadata(b"{" + events.tail.lstrip(b", \r\n\t")))
            columns = columns or EventColumns(0.0)
            trace = columns.trace(str(path), _header(path, meta, first_us), meta)
            trace.nbytes = source.nbytes
        trace.broken_lines += events.broken
        if events.is_closed:
            trace.trailer = Trailer(reason="exit", steps=len(trace.steps))
        return trace


def _first_us(chunk: list[object]) -> float:
    """Return the first time of a span in a chunk, 0.0 if there is none."""
    spans = (event for event in chunk if isinstance(event, TraceEvent))
    return next((event.ts for event in spans if event.ts > 0), 0.0)


def _metadata(text: bytes) -> Metadata:
    """Decode an object of which the end may be missing, field by field; all may be absent."""
    for whole in (text, text.rstrip(b", \r\n\t") + b"}"):
        try:
            fields = msgspec.json.decode(whole, type=dict[str, msgspec.Raw])
        except UNDECODABLE:
            continue
        return Metadata(**dict(_known(fields)))
    return Metadata()


def _known(fields: dict[str, msgspec.Raw]) -> Iterator[tuple[str, Any]]:
    for field in msgspec.structs.fields(Metadata):
        if (raw := fields.get(field.encode_name)) is not None:
            try:
                yield field.name, msgspec.json.decode(raw, type=field.type, strict=False)
            except UNDECODABLE:
                continue


def _joined(one: Metadata, other: Metadata) -> Metadata:
    """Return what either knows; the first where both do."""
    known = {name: value for name, value in msgspec.structs.asdict(one).items() if value}
    return msgspec.structs.replace(other, **known)


def _tail(path: Path) -> Metadata | None:
    """Read what follows the events; None where only decoding them all would tell."""
    with Source(path) as source:
        end = source.end(_TAIL_BYTES)
    for mark in re.finditer(rb'\]\s*,\s*(?=")', end):
        try:  # what is whole from here to the end is in no event
            fields = msgspec.json.decode(b"{" + end[mark.end() :], type=dict[str, msgspec.Raw])
        except UNDECODABLE:
            continue
        return Metadata(**dict(_known(fields)))
    return None


def _header(path: Path, meta: Metadata, first_us: float) -> Header:
    """Make the header of a native trace of what a profiler's file knows of its writer."""
    who = meta.distributed or Distributed()
    named_host, pid = _writer(path)
    host = meta.host or named_host
    rank = who.rank if who.rank >= 0 else max(rank_in_name(path), 0)
    start_ns = meta.base_ns + round(first_us * 1000)
    if abs(start_ns) >= 1 << 63:
        raise TraceError(f"{path}: a time is beyond 64 bits: the file is damaged")
    return foreign_header(
        path,
        RUN_KEY,
        rank,
        max(who.world_size, rank + 1) if who.rank >= 0 and who.world_size > 0 else 0,
        host=host,
        pid=pid,
        started_epoch_ns=start_ns,
        started_monotonic_ns=start_ns,
        # Profilers of one host write one clock: the same as what two ranks of a boot share.
        boot_id=host,
        backend=who.backend,
        device="cuda" if meta.devices or "nccl" in who.backend else "cpu",
        versions=_versions(meta, who),
    )


def _writer(path: Path) -> tuple[str, int]:
    """Return host and process of a name of torch's own, "" and 0 for any other.

    Events that bear the number of the process prove that a name is torch's.
    """
    named = _WRITER_IN_NAME.match(path.name)
    if named is None or rank_in_name(path) >= 0:
        return "", 0
    process = re.compile(_PROCESS_OF_HOST % int(named["pid"]))
    is_proven = process.search(read_start(path, _PROVEN_WITHIN_BYTES)) is not None
    return (named["host"], int(named["pid"])) if is_proven else ("", 0)


def _versions(meta: Metadata, who: Distributed) -> dict[str, str]:
    devices = sorted({str(device.get("name", "")) for device in meta.devices} - {""})
    known = {
        "device": ", ".join(devices)[:200],
        "nccl": who.nccl_version,
        "cuda runtime": str(meta.cuda_runtime or ""),
        "hip runtime": str(meta.hip_runtime or ""),
    }
    return {name: version for name, version in known.items() if version}


READER: Reader = KinetoReader()
