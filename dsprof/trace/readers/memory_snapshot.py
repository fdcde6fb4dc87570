"""Reads `torch.cuda.memory._dump_snapshot()`: pickles of plain data, of one process.

A snapshot does not say its rank; its name may. The history (`_record_memory_history`) is a ring:
what it holds is set against the end, where the segments tell what is allocated.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from dsprof.errors import TraceError
from dsprof.files.inputs import FileStatus
from dsprof.findings.frames import to_the_innermost
from dsprof.findings.wording import size
from dsprof.trace.dumps.memory_snapshot import MemorySnapshot, Peak, ReturnedSegments
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers.base import Facts, OneRankReader, Reader, foreign_header, rank_in_name
from dsprof.trace.readers.pickles import load_plain
from dsprof.trace.readers.untrusted_values import call_stack, caller, items, mapping, number, text
from dsprof.trace.schema import Header, Note, Trailer
from dsprof.trace.source import Source

RUN_KEY = "memory snapshot"
_MOST_SEGMENTS = 200_000
_MOST_BLOCKS = 1_000_000  # of all segments: one list may be in many of them
_MOST_EVENTS = 2_000_000
_MOST_FRAMES = 200  # of a call stack
_MOST_STACKS = 10_000
_STACKS_KEPT = 200
_OTHERS = ("other call stacks",)
_HOLDERS_KEPT = 10
_LARGEST_DEVICE = 1 << 10
_SMALL_PAGE, _LARGE_PAGE = 2 << 20, 20 << 20  # of expandable segments of either pool


class SnapshotReader(OneRankReader):
    """Reads one memory snapshot."""

    name = "memory snapshot"
    tells = Facts.SNAPSHOT
    order = 70

    def recognises(self, start: bytes) -> bool:
        marks = (b"total_size", b"segment_type", b"device_traces", b"allocator_settings")
        return start[:1] == b"\x80" and b"segments" in start and any(m in start for m in marks)

    def read_header(self, path: Path) -> Header:
        return _read(path).header

    def read_trace(self, path: Path) -> RankTrace:
        """Read a snapshot; of several devices the one with most memory."""
        found = _read(path)
        return RankTrace(
            path=str(path),
            header=found.header,
            trailer=Trailer(reason="dump"),
            notes=[Note(f"{path.name} {note}") for note in found.notes],
            snapshot=found.snapshot,
            nbytes=found.nbytes,
        )


class _Read(NamedTuple):
    header: Header
    snapshot: MemorySnapshot
    notes: tuple[str, ...]
    nbytes: int


def _read(path: Path) -> _Read:
    with Source(path) as source:
        found = _read_once(path, source.status)
    return found._replace(header=copy(found.header))  # a run changes its own


@lru_cache(maxsize=256)  # the header is asked for, then the trace; to parse 100 MB takes 15 s
def _read_once(path: Path, _status: FileStatus) -> _Read:
    with Source(path) as source:
        document = mapping(load_plain(source.read_whole(), str(path), source.most_parts))
        nbytes = source.nbytes
    if not isinstance(document.get("segments"), (list, tuple)):
        raise TraceError(f"{path}: no memory snapshot: it holds no segments")
    snapshot, notes = _snapshot(document)
    if rank_in_name(path) < 0:
        notes.append("does not name its rank; rank 0 is assumed")
    return _Read(_header(path, document), snapshot, tuple(notes), nbytes)


def _header(path: Path, document: dict[Any, Any]) -> Header:
    started_ns = next((1000 * number(e.get("time_us")) for e in _events(document, 0)), 0)
    return foreign_header(
        path,
        RUN_KEY,
        max(rank_in_name(path), 0),
        started_epoch_ns=started_ns if 0 < started_ns < 1 << 62 else 0,
        device="cuda",
    )


def _snapshot(document: dict[Any, Any]) -> tuple[MemorySnapshot, list[str]]:
    """Return the device with most memory, and what is left out of the others."""
    devices: defaultdict[int, list[dict[Any, Any]]] = defaultdict(list)
    for segment in map(mapping, items(document["segments"], _MOST_SEGMENTS)):
        devices[number(segment.get("device"))].append(segment)
    sizes = {device: sum(map(_total, segments)) for device, segments in devices.items()}
    device = max(sizes, key=sizes.__getitem__, default=0)
    left = sum(sizes.values()) - sizes.get(device, 0)
    notes = [
        f"has memory of {len(sizes)} devices: device {device} is judged, {size(left)} reserved on "
        "others are left out"
    ]
    return _layout(device, devices[device], document), notes if left else []


def _layout(
    device: int, segments: Sequence[dict[Any, Any]], document: dict[Any, Any]
) -> MemorySnapshot:
    left = _MOST_BLOCKS
    sums: Counter[str] = Counter()
    stacks = _Stacks()
    largest = 0
    for segment in segments:
        blocks = [mapping(block) for block in items(segment.get("blocks"), left)]
        left -= len(blocks)
        stacks.take(blocks)
        free = [_size(block) for block in blocks if block.get("state") == "inactive"]
        largest = max(largest, *free, 0)
        total, active = _total(segment), min(_size(segment, "active_size"), _total(segment))
        cached = _returnable(segment, total, active, free)
        sums += Counter(
            reserved=total,
            active=active,
            cached=cached,
            stuck=total - active - cached,
            expandable=total if segment.get("is_expandable") is True else 0,
            private=total if any(map(number, items(segment.get("segment_pool_id"), 2))) else 0,
            partly=int(0 < active < total),
            requested=sum(map(_requested, blocks)),
        )
    events = list(_events(document, device))
    failed = next((i for i in reversed(range(len(events))) if _action(events[i]) == "oom"), None)
    oom = None if failed is None else events[failed]
    return MemorySnapshot(
        device=device,
        reserved_bytes=sums["reserved"],
        active_bytes=sums["active"],
        cached_bytes=sums["cached"],
        stuck_bytes=sums["stuck"],
        largest_free_bytes=largest,
        expandable_bytes=sums["expandable"],
        private_bytes=sums["private"],
        segments=len(segments),
        partly_used=sums["partly"],
        peak=_peak(events, sums["requested"]),
        oom_bytes=_size(oom) if oom else 0,
        oom_device_free_bytes=_size(oom, "device_free") if oom and "device_free" in oom else None,
        changed_since_oom=failed is not None and any(_action(e) in _STEPS for e in events[failed:]),
        returned=_returned(events),
        stacks=stacks.largest(),
    )


class _Stacks:
    """Sums what is in use by call stack."""

    def __init__(self) -> None:
        self._held: Counter[tuple[str, ...]] = Counter()
        self._known: dict[int, tuple[str, ...]] = {}  # a pickle has one list for equal stacks

    def take(self, blocks: Iterable[dict[Any, Any]]) -> None:
        """Add blocks; beyond a number of stacks, new ones count as one."""
        for block in blocks:
            if block.get("state") != "inactive":
                stack = self._of(block.get("frames"))
                is_kept = stack in self._held or len(self._held) < _MOST_STACKS
                self._held[stack if is_kept else _OTHERS] += _size(block)

    def _of(self, frames: Any) -> tuple[str, ...]:
        if id(frames) not in self._known:
            self._known[id(frames)] = to_the_innermost(call_stack(frames))
        return self._known[id(frames)]

    def largest(self) -> tuple[tuple[tuple[str, ...], int], ...]:
        """Return those that hold most; none where no stack was recorded."""
        if not any(self._held):
            return ()
        kept = self._held.most_common(_STACKS_KEPT)
        rest = self._held.total() - sum(nbytes for _, nbytes in kept)
        return (*kept, *([(_OTHERS, rest)] if rest else []))


def _action(event: dict[Any, Any]) -> str:
    return text(event.get("action"))


def _returned(events: Sequence[dict[Any, Any]]) -> ReturnedSegments:
    """Count the segments that the allocator gave back, as they were or page by page."""
    places = [i for i, event in enumerate(events) if _action(event) in _RETURNS]
    stacks = [items(events[i].get("frames"), _MOST_FRAMES) for i in places]
    return ReturnedSegments(
        segments=len(places),
        nbytes=sum(_size(events[i]) for i in places),
        flushes=sum(i - 1 != before for before, i in zip([-2, *places], places, strict=False)),
        requested=sum(any(map(_empties, frames)) for frames in stacks),
        traced=sum(bool(frames) for frames in stacks),
    )


def _empties(frame: Any) -> bool:
    return text(mapping(frame).get("name")).endswith("empty_cache")


def _returnable(segment: dict[Any, Any], total: int, active: int, free: Iterable[int]) -> int:
    """Return what the allocator can give back of a segment."""
    if not active:
        return total
    if segment.get("is_expandable") is not True:
        return 0
    page = _SMALL_PAGE if segment.get("segment_type") == "small" else _LARGE_PAGE
    return min(sum(size // page * page for size in free), total - active)


def _total(segment: dict[Any, Any]) -> int:
    return _size(segment, "total_size")


def _size(thing: dict[Any, Any], name: str = "size") -> int:
    return max(number(thing.get(name)), 0)


def _requested(block: dict[Any, Any]) -> int:
    if block.get("state") != "active_allocated":
        return 0
    return _size(block, "requested_size") or _size(block)


def _events(document: dict[Any, Any], device: int) -> Iterator[dict[Any, Any]]:
    """Yield the history of a device."""
    traces = items(document.get("device_traces"), _LARGEST_DEVICE)
    if 0 <= device < len(traces):
        yield from map(mapping, items(traces[device], _MOST_EVENTS))


_STEPS = {"alloc": 1, "free_requested": -1}


_RETURNS = ("segment_free", "segment_unmap")


def _peak(events: Sequence[dict[Any, Any]], last_bytes: int) -> Peak | None:
    """Find the moment at which most was requested, counting back from the end."""
    steps = [_STEPS.get(_action(event), 0) * _size(event) for event in events]
    if not any(steps):
        return None
    level = max(last_bytes - sum(steps), 0)
    most, at = level, -1
    for i, step in enumerate(steps):
        level += step
        if level > most:
            most, at = level, i
    live = _live(events[: at + 1])
    by_caller: Counter[str] = Counter()
    for holder, nbytes in live.values():
        by_caller[holder] += nbytes
    known = sum(by_caller.values())
    return Peak(
        requested_bytes=most,
        holders=tuple(by_caller.most_common(_HOLDERS_KEPT)),
        before_bytes=max(most - known, 0),
        events=len(events),
    )


def _live(events: Iterable[dict[Any, Any]]) -> dict[int, tuple[str, int]]:
    """Return what was allocated in these events and not freed, by address."""
    live: dict[int, tuple[str, int]] = {}
    callers: dict[int, str] = {}
    for event in events:
        address = number(event.get("addr"))
        if event.get("action") == "alloc":
            frames = event.get("frames")
            if id(frames) not in callers:
                callers[id(frames)] = caller(frames) or "no Python frame"
            live[address] = callers[id(frames)], _size(event)
        elif event.get("action") == "free_requested":
            live.pop(address, None)
    return live


READER: Reader = SnapshotReader()
