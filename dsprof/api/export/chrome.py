"""Chrome's Trace Event JSON: a process for each rank, a thread for each lane.

An arrow of this format has two ends, and the first must not be later. So each member of a group
points from where it enters a collective to where the next member leaves it: no rank leaves before
every rank has entered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import msgspec

from dsprof.api.export.timeline import RankTracks, Slice, edges
from dsprof.files.json_documents import json_line


def write_chrome(file: BinaryIO, ranks: Iterable[RankTracks]) -> None:
    """Write the run as Trace Event JSON."""
    separator = b'{"displayTimeUnit":"ns","traceEvents":[\n'
    for rank in ranks:
        for event in _events(rank):
            file.write(separator + json_line(event))
            separator = b",\n"
    file.write(b"\n]}\n")


def _events(rank: RankTracks) -> Iterator[dict[str, Any]]:
    at = {"pid": rank.rank}
    yield {"ph": "M", "name": "process_name", **at, "args": {"name": rank.name}}
    yield {"ph": "M", "name": "process_sort_index", **at, "args": {"sort_index": rank.rank}}
    count = 0
    for track in rank.tracks:
        lanes: dict[int, int] = {}
        for edge in edges(track.slices):
            if edge.begins is None:
                continue
            if edge.lane not in lanes:
                count += 1
                lanes[edge.lane] = count
                args = {"name": track.name}
                yield {"ph": "M", "name": "thread_name", **at, "tid": count, "args": args}
                order = {"sort_index": count}
                yield {"ph": "M", "name": "thread_sort_index", **at, "tid": count, "args": order}
            yield from _slice(edge.begins, {**at, "tid": lanes[edge.lane]})


def _slice(one: Slice, at: dict[str, int]) -> Iterator[dict[str, Any]]:
    took_ns = one.end_ns - one.start_ns
    shown = {"ph": "X", "name": one.name, **at, "ts": _us(one.start_ns), "dur": _us(took_ns)}
    yield {**shown, "args": one.args}
    if one.flow is None:
        return
    arrow = {"name": one.name, "cat": "collective", **at}
    if one.flow.place < one.flow.last:
        name = f"{one.flow.id:x}.{one.flow.place}"
        yield {"ph": "s", "id": name, **arrow, "ts": _us(one.start_ns)}
    if one.flow.place:
        name = f"{one.flow.id:x}.{one.flow.place - 1}"
        inside_ns = max(one.start_ns, one.end_ns - 1)  # the end itself is no part of the slice
        yield {"ph": "f", "bp": "e", "id": name, **arrow, "ts": _us(inside_ns)}


def _us(time_ns: int) -> msgspec.Raw:
    """Return microseconds with all digits of a time in ns."""
    return msgspec.Raw(b"%d.%03d" % divmod(time_ns, 1000))
