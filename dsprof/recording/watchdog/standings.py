"""Where ranks are, by their dumps and live states: what the judgement is made of."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import replace

from dsprof.environment.processes import GONE
from dsprof.recording.watchdog.judgement import Condition, Standing, Wait
from dsprof.recording.watchdog.look import is_debugged, is_saving
from dsprof.trace.collectives import OTHER_SIDE, SYNCHRONISING, family
from dsprof.trace.dumps.hang_dump import FILE_WAITS, HangDump, store_call
from dsprof.trace.dumps.state_file import UNFOLLOWED, StateCall


def standings_of(
    dumps: Mapping[int, HangDump], earlier: Mapping[int, HangDump] = {}
) -> dict[int, Standing]:
    """Return where each rank is; `earlier` are dumps of the inquiry before, in the same silence."""
    found = {rank: _standing(rank, dump, earlier.get(rank)) for rank, dump in dumps.items()}
    return {rank: _without_arrived(standing, found) for rank, standing in found.items()}


def met_in(dumps: Mapping[int, HangDump]) -> set[int]:
    """Return the ranks that have come to a collective, as far as one that is complete shows."""
    found, seen = set[int](), set[str]()
    for state in (dump.state for dump in dumps.values() if dump.state is not None):
        done = {*state.passed}
        done |= {
            call.group
            for call in state.calls
            if call.done_ns > UNFOLLOWED and family(call.op) in SYNCHRONISING
        }
        for group in (state.groups[number] for number in done if number in state.groups):
            if group.key not in seen:
                seen.add(group.key)
                found.update(group.ranks)
    return found


def _without_arrived(standing: Standing, standings: Mapping[int, Standing]) -> Standing:
    """Return where a rank is; it does not wait for sends that were received."""
    waits = [wait for wait in standing.waits if not _has_arrived(wait, standings)]
    return replace(standing, waits=tuple(waits))


def _has_arrived(wait: Wait, standings: Mapping[int, Standing]) -> bool:
    others = (standings[rank] for rank in wait.members if rank in standings)
    return any(other.received.get(wait.key, 0) >= wait.seq for other in others)


def _standing(rank: int, dump: HangDump, earlier: HangDump | None) -> Standing:
    entered: dict[Hashable, int] = defaultdict(int)
    reached: dict[Hashable, int] = defaultdict(int)
    received: dict[Hashable, int] = defaultdict(int)
    waits: list[Wait] = []
    is_on_host = dump.header.device == "cpu"
    standing = Standing(condition=condition_of(dump, earlier), at_store_ns=_at_store_ns(dump))
    if (state := dump.state) is None:
        return standing
    for number, seq in state.passed.items():
        if number in state.groups:
            of_group = state.groups[number].key
            entered[of_group], reached[of_group] = seq, seq * is_on_host
    for call in state.calls:
        if (group := state.groups.get(call.group)) is None:
            continue
        key = _key(rank, call, group.key)
        entered[key] = max(entered[key], call.seq)
        if is_on_host or call.done_ns != UNFOLLOWED:
            reached[key] = max(reached[key], call.seq)
        if call.op == "recv" and call.done_ns > UNFOLLOWED:
            received[key] = max(received[key], call.seq)
        if call.is_in_flight:
            members = (call.peer,) if call.is_pair else tuple(group.ranks)
            awaited = _key(rank, call, group.key, OTHER_SIDE)
            age_ns = dump.noticed_ns - call.issue_ns
            waits.append(Wait(awaited, key, members, call.seq, age_ns))
    return replace(
        standing, waits=tuple(waits), entered=entered, reached=reached, received=received
    )


def condition_of(dump: HangDump, earlier: HangDump | None = None) -> Condition:
    """Say what a rank does outside collectives."""
    process = dump.process
    if process.state == GONE:
        return "gone"
    if is_debugged(dump.threads, process) or process.state == "t":
        return "debugged"
    if process.state == "T":
        return "stopped"
    if dump.holds_interpreter:
        return "locked"
    if dump.lost_store:
        return "storeless"
    if is_saving(dump.threads) and not _writes_nothing(dump, earlier):
        return "saving"
    return "active" if dump.is_active else "idle"


def _at_store_ns(dump: HangDump) -> int:
    return dump.quiet_ns if dump.is_own and store_call(dump.threads) else 0


def _writes_nothing(dump: HangDump, earlier: HangDump | None) -> bool:
    """Say whether a rank that saves waits for a file, as in the inquiry before, and no byte moved.

    One that waits for another thread may send bytes, which the kernel does not count.
    """
    if earlier is None or not (_saves_to_file(earlier) and _saves_to_file(dump)):
        return False
    return dump.process.thread_io_bytes == earlier.process.thread_io_bytes


def _saves_to_file(dump: HangDump) -> bool:
    process = dump.process
    waits = process.state == "D" or re.search(FILE_WAITS, process.waits_in)
    return bool(waits) and is_saving(dump.threads)


def _key(rank: int, call: StateCall, group: str, sides: Mapping[str, str] = {}) -> Hashable:
    """Return what numbers calls: their group, or sender, receiver and side of it."""
    if not call.is_pair:
        return group
    op = call.op.removeprefix("i")
    side = sides.get(op, op)
    ends = (rank, call.peer) if op == "send" else (call.peer, rank)
    return group, *ends, side
