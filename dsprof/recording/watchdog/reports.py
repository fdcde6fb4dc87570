"""Reports of a node to other nodes: as much as a verdict takes, packed, of bounded size."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from dsprof.files.decoding import UNDECODABLE
from dsprof.trace.dumps.hang_dump import HangDump
from dsprof.trace.dumps.state_file import RankState, StateCall

_CALLS = 8
"""This many ended calls of a group are compared, the last ones."""

_FRAMES, _SOCKETS = 30, 8
_LARGEST_BYTES = 1 << 23
_DUMPS = msgspec.msgpack.Decoder(list[HangDump])


def packed(dumps: Iterable[HangDump]) -> bytes:
    """Return dumps in a form that others unpack."""
    return zlib.compress(msgspec.msgpack.encode([brief(dump) for dump in dumps]), 1)


def unpacked(data: bytes, run_key: str) -> list[HangDump]:
    """Return the dumps of a run; nothing of what was not packed by `packed`."""
    unzip = zlib.decompressobj()
    try:
        dumps = _DUMPS.decode(unzip.decompress(data, _LARGEST_BYTES))
    except (zlib.error, *UNDECODABLE):
        return []
    return [dump for dump in dumps if dump.header.run_key == run_key]


def brief(dump: HangDump) -> HangDump:
    """Return a dump without what no verdict is made of."""
    header = msgspec.structs.replace(dump.header, config={}, versions={})
    state = None if dump.state is None else _brief_state(dump.state)
    return msgspec.structs.replace(
        dump,
        header=header,
        state=None if state is None else msgspec.structs.replace(state, header=header),
        threads=[
            msgspec.structs.replace(one, frames=one.frames[:_FRAMES]) for one in dump.threads[:1]
        ],
        native_stacks="",
        memory=None,
        process=msgspec.structs.replace(dump.process, sockets=dump.process.sockets[:_SOCKETS]),
    )


def _brief_state(state: RankState) -> RankState:
    calls = [call for call in state.calls if call.is_in_flight]
    ended: defaultdict[tuple[int, bool], list[StateCall]] = defaultdict(list)
    for call in state.calls:
        if not call.is_in_flight:
            ended[call.group, call.is_pair].append(call)
    calls += [call for same in ended.values() for call in same[-_CALLS:]]
    groups = {call.group for call in calls} | {*state.passed}
    sites = {call.site for call in calls}
    return msgspec.structs.replace(
        state,
        calls=sorted(calls, key=lambda call: call.id),
        groups={number: one for number, one in state.groups.items() if number in groups},
        sites={number: one for number, one in state.sites.items() if number in sites},
        stacks="",
    )
