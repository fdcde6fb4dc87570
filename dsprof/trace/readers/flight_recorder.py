"""Reads dumps of torch's flight recorder: pickles and JSON, of NCCL and of gloo.

NCCL's watchdog writes a pickle a rank (`TORCH_NCCL_DUMP_ON_TIMEOUT`); a dump does not say whose it
is, but it names the groups that its rank belongs to. Gloo's recorder leaves the groups' ranks out
and never learns that a collective has ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dsprof.errors import TraceError
from dsprof.files.decoding import UNDECODABLE
from dsprof.trace.dumps.flight_dump import FlightDump, FlightEntry, FlightGroup
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers.base import Facts, OneRankReader, Reader, foreign_header, rank_in_name
from dsprof.trace.readers.pickles import load_plain
from dsprof.trace.readers.untrusted_values import (
    caller,
    is_of_zero3,
    items,
    mapping,
    number,
    number_at_end,
    text,
)
from dsprof.trace.schema import LARGEST_WORLD, Header, Trailer
from dsprof.trace.source import Source

RUN_KEY = "flight recorder"
_MARKS = (b"pg_config", b"pg_status", b"profiling_name")
_DEVICES = {"gloo": "cpu", "hccl": "npu", "xccl": "xpu"}
"""Devices of backends other than NCCL and those made from it."""
_MOST_ENTRIES = 100_000
_MOST_GROUPS = 10_000
_MOST_TENSORS = 64
_MOST_DIMENSIONS = 16
_PEERS = re.compile(r"(send|recv) (\d{1,7})(->|<-)(\d{1,7})")


class FlightReader(OneRankReader):
    """Reads one dump."""

    name = "flight recorder dump"
    tells = Facts.FLIGHT
    order = 60

    def recognises(self, start: bytes) -> bool:
        return start.lstrip()[:1] in (b"\x80", b"{") and sum(m in start for m in _MARKS) >= 2

    def read_trace(self, path: Path) -> RankTrace:
        with Source(path) as source:
            document = _document(source, str(path))
            nbytes = source.nbytes
        if not isinstance(document, dict) or not isinstance(document.get("entries"), (list, tuple)):
            raise TraceError(f"{path}: not a flight recorder dump: no entries")
        dump = _dump(document)
        return RankTrace(
            path=str(path),
            header=_header(path, dump, document),
            trailer=Trailer(reason="dump"),
            flight=dump,
            nbytes=nbytes,
        )


def _document(source: Source, where: str) -> Any:
    data = source.read_whole()
    if data[:1] == b"\x80":
        return load_plain(data, where, source.most_parts)
    if sum(map(data.count, (b",", b"{", b"["))) > source.most_parts:
        raise TraceError(f"{where}: too many objects for a file of this size, so it is not read")
    try:
        return msgspec.json.decode(data)
    except UNDECODABLE:
        raise TraceError(f"{where}: a dump that is cut or damaged") from None


def _dump(document: dict[Any, Any]) -> FlightDump:
    found = [mapping(entry) for entry in items(document["entries"], _MOST_ENTRIES)]
    backend = next(filter(None, (_named(entry)[0] for entry in found)), "")
    entries = [_entry(entry) for entry in found]
    return FlightDump(
        backend=backend or ("nccl" if document.get("nccl_version") else ""),
        knows_completion=backend != "gloo",
        groups={group.name: group for group in _groups(document, found)},
        entries=[entry for entry in entries if entry.group],
    )


def _entry(entry: dict[Any, Any]) -> FlightEntry:
    name = _named(entry)[1]
    peers = _PEERS.fullmatch(name)
    is_p2p = entry.get("is_p2p") is True or peers is not None
    here, there = (int(peers[2]), int(peers[4])) if peers else (-1, -1)
    is_receiving = peers is not None and peers[3] == "<-"
    dtypes = items(entry.get("input_dtypes"), 1) or items(entry.get("output_dtypes"), 1)
    return FlightEntry(
        group=_group_name(entry),
        seq=number(entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", entry.get("seq_id"))),
        op=name.split(" ")[0],
        input_sizes=_sizes(entry.get("input_sizes")),
        output_sizes=_sizes(entry.get("output_sizes")),
        dtype=text(dtypes[0]) if dtypes else "",
        state=text(entry.get("state")),
        created_ns=number(entry.get("time_created_ns")),
        completed_ns=number(entry.get("time_discovered_completed_ns")),
        is_retired=entry.get("retired") is True,
        is_p2p=is_p2p,
        source=there if is_receiving else here,
        target=here if is_receiving else there,
        frame=caller(entry.get("frames")),
        is_of_zero3=is_of_zero3(entry.get("frames")),
    )


def _named(entry: dict[Any, Any]) -> tuple[str, str]:
    """Return the backend, "" where none is named, and the operation."""
    backend, mark, name = text(entry.get("profiling_name")).partition(":")
    return (backend, name) if mark else ("", backend)


def _group_name(entry: dict[Any, Any]) -> str:
    """Return the name of a group; dumps of old versions have only its number."""
    named = items(entry.get("process_group"), 2)
    return text(named[0]) if named else str(number(entry.get("pg_id"), -1))


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    shapes = (items(shape, _MOST_DIMENSIONS) for shape in items(value, _MOST_TENSORS))
    return tuple(tuple(number(size) for size in shape) for shape in shapes)


def _groups(document: dict[Any, Any], found: list[dict[Any, Any]]) -> Iterator[FlightGroup]:
    """Yield every group that the dump names, in its table of groups or in an entry."""
    config = [
        mapping(one)
        for one in items(list(mapping(document.get("pg_config")).values()), _MOST_GROUPS)
    ]
    known = {text(one.get("name")): one for one in config if one.get("name")}
    labels = dict.fromkeys(map(_group_name, found), "")
    labels |= {_group_name(e): text(pair[1]) for e in found if (pair := _pair(e))}
    status = mapping(document.get("pg_status"))
    numbers = _numbers(known, status, found)
    for name in dict.fromkeys([*known, *labels]):
        state = mapping(status.get(str(numbers.get(name, ""))))
        yield FlightGroup(
            name=name,
            label=text(known.get(name, {}).get("desc")) or labels.get(name, ""),
            ranks=_ranks(known.get(name, {}).get("ranks")),
            last_enqueued=number(state.get("last_enqueued_collective"), -1),
            last_completed=number(state.get("last_completed_collective"), -1),
        )


def _pair(entry: dict[Any, Any]) -> list[Any]:
    named = items(entry.get("process_group"), 2)
    return named if len(named) == 2 else []


def _numbers(
    known: dict[str, Any], status: dict[Any, Any], found: list[dict[Any, Any]]
) -> dict[str, int]:
    """Return the rank's own number of each group, under which `pg_status` keeps its counters.

    Entries tell both. A dump without an entry of a group tells them only in order: names that are
    numbers, and numbers of groups, both count up as groups are made.
    """
    told = {_group_name(e): number(e.get("pg_id"), -1) for e in found if "pg_id" in e}
    numbers = sorted(number(key, -1) for key in status)
    if len(known) == len(numbers) and all(name.isdecimal() for name in known):
        in_order = dict(zip(sorted(known, key=int), numbers, strict=True))
        if all(in_order.get(name) == one for name, one in told.items()):
            return in_order
    return told


def _ranks(value: Any) -> tuple[int, ...]:
    """Return the ranks of a group, which are written as text: "[0, 1]"."""
    try:
        ranks = msgspec.json.decode(value, type=list[int]) if isinstance(value, str) else value
    except UNDECODABLE:
        return ()
    found = [number(rank, -1) for rank in items(ranks, LARGEST_WORLD)]
    return tuple(sorted({rank for rank in found if 0 <= rank < LARGEST_WORLD}))


def _header(path: Path, dump: FlightDump, document: dict[Any, Any]) -> Header:
    ranks = [group.ranks for group in dump.groups.values() if group.ranks]
    world = next((len(g.ranks) for g in dump.groups.values() if g.label == "default_pg"), 0)
    version = text(document.get("nccl_version") or document.get("comm_lib_version"))
    return foreign_header(
        path,
        RUN_KEY,
        _rank(path, ranks),
        world,
        started_epoch_ns=min((e.created_ns for e in dump.entries if e.created_ns > 0), default=0),
        backend=dump.backend,
        device=_DEVICES.get(dump.backend, "cuda"),
        versions={"nccl": version} if version else {},
    )


def _rank(path: Path, groups: list[tuple[int, ...]]) -> int:
    """Return the rank that is in all groups of a dump, or the one of them that its name says."""
    common = set.intersection(*map(set, groups)) if groups else set()
    if len(common) == 1:
        return common.pop()
    named = rank_in_name(path)
    if named < 0:
        named = number_at_end(path)
    if named < 0 or named >= LARGEST_WORLD or (groups and named not in common):
        raise TraceError(
            f"{path}: neither the dump nor its file name states the rank; rename the file so that "
            "it ends in the rank: _dump_3 or rank3.pkl"
        )
    return named


READER: Reader = FlightReader()
