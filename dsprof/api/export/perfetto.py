"""Perfetto's own format: a stream of protobuf messages, as protos/perfetto/trace declares them.

Names of slices are interned: of each rank's sequence of packets, each is written once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from dsprof.api.export.timeline import RankTracks, Slice, edges

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_BEGIN, _END = 1, 2
_CLEARED, _NEEDED = 1, 2  # state of the interned names
_EXPLICIT = 3  # order of tracks
_TRACKS_PER_RANK = 1 << 20


def write_perfetto(file: BinaryIO, ranks: Iterable[RankTracks]) -> None:
    """Write the run as a trace of Perfetto."""
    for rank in ranks:
        file.writelines(_field(1, packet) for packet in _packets(rank))  # Trace.packet


def _packets(rank: RankTracks) -> Iterator[bytes]:
    """Yield the packets of a rank."""
    root = (rank.rank + 1) * _TRACKS_PER_RANK
    sequence = _field(10, rank.rank + 1)  # trusted_packet_sequence_id
    head = _field(1, root) + _field(2, rank.name) + _field(11, _EXPLICIT) + _field(12, rank.rank)
    yield sequence + _field(60, head) + _field(13, _CLEARED)
    names: dict[str, int] = {}
    count = 0
    for track in rank.tracks:
        lanes: dict[int, bytes] = {}  # uuid, as a field of events
        for edge in edges(track.slices):
            if edge.lane not in lanes:
                count += 1
                lanes[edge.lane] = _field(11, root + count)
                about = _field(1, root + count) + _field(5, root) + _field(2, track.name)
                yield sequence + _field(60, about + _field(12, count))  # track_descriptor
            event, interned = _field(9, _END), b""
            if edge.begins is not None:
                event, interned = _begin(edge.begins, names)
            event += lanes[edge.lane]
            time = _field(8, edge.time_ns) + _field(13, _NEEDED)
            yield sequence + time + interned + _field(11, event)


def _begin(one: Slice, names: dict[str, int]) -> tuple[bytes, bytes]:
    """Return the event with which a slice begins, and its name where it is a new one."""
    interned = b""
    if one.name not in names:
        names[one.name] = len(names) + 1
        entry = _field(1, names[one.name]) + _field(2, one.name)
        interned = _field(12, _field(2, entry))  # interned_data.event_names
    event = _field(9, _BEGIN) + _field(10, names[one.name])
    event += b"".join(_field(4, _annotation(name, value)) for name, value in one.args.items())
    if one.flow is not None:
        event += _key(47, _FIXED64) + one.flow.id.to_bytes(8, "little")  # flow_ids
    return event, interned


def _annotation(name: str, value: bool | int | str) -> bytes:
    number = 2 if isinstance(value, bool) else 4 if isinstance(value, int) else 6
    return _field(10, name) + _field(number, value)


def _field(number: int, value: Any) -> bytes:
    """Return a field: text and messages with their length, other values as varints."""
    if isinstance(value, int):
        return _key(number, _VARINT) + _varint(value)
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return _key(number, _BYTES) + _varint(len(data)) + data


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # a negative int64 takes ten bytes
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)
