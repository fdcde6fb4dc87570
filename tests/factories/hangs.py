"""Four ranks that wait in an all-reduce until something ends them; times in ms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dsprof.trace.dumps.state_file import RankState
from dsprof.trace.lines import LINES, Line
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Group, GroupEnd, Site, Trailer
from tests.factories.trace import alive, group, hanging, header, heartbeat, ns, rank_trace, sync
from tests.factories.trace_files import encode, run_events

RANKS = 4
KILLED: dict[str, Any] = {"trailer": None}
KEPT: dict[str, Any] = KILLED | {
    "state": RankState(header(), 1, 0, -1, "", calls=[], passed={}, lost=0, groups={}, sites={})
}
"""Killed, with a live state that agrees with the trace."""


def left(at: float, *, is_written: bool = True) -> dict[str, Any]:
    """Killed after it destroyed its process group, which else only the live state knows."""
    if is_written:
        return KILLED | {"group_ends": [GroupEnd(ns(at))]}
    left_ns = header().started_monotonic_ns + ns(at)
    return KILLED | {"state": msgspec.structs.replace(KEPT["state"], left_ns=left_ns)}


CTRL_C: dict[str, Any] = {"trailer": Trailer(reason="interrupted")}
EXIT: dict[str, Any] = {"trailer": Trailer(reason="exit")}
END = 42_000.0


def raised(kind: str) -> dict[str, Any]:
    return {"trailer": Trailer(reason="exit", exception=kind)}


def before(last: int = 3, group: int = 1) -> list[Any]:
    """All-reduces that all ranks completed; the next would be at 1000."""
    return [
        sync("all_reduce", 100 * n, 10, seq=n, group=group, step=n, site=1)
        for n in range(1, last + 1)
    ]


def rank(number: int, comm: Sequence[Any], until: float = END, **fields: Any) -> RankTrace:
    given: dict[str, Any] = {"groups": {1: group(RANKS)}, "memory": [alive(until)]}
    given["sites"] = {1: Site(1, "train.py", 40, "train")}
    return rank_trace(number, RANKS, comm=[*before(), *comm], **(given | fields))


def waits(seq: int = 4, at: float = 1000, **fields: Any) -> Any:
    return hanging("all_reduce", at, seq=seq, step=12, nbytes=4 << 20, **fields)


def without(*absent: int, **fields: Any) -> list[RankTrace]:
    """All ranks but `absent` wait in all-reduce 4."""
    return [rank(n, [] if n in absent else [waits()], **fields) for n in range(RANKS)]


def pair(*ranks: int) -> Group:
    number = 3 if ranks == (1, 2) else 4 if ranks == (0, 2) else 2
    label = f"pair {ranks[0]}-{ranks[1]}"
    return group(RANKS, id=number, key=label, label=label, ranks=list(ranks))


def write_killed(folder: Path, *waiting: int, **of_headers: Any) -> None:
    """Write a run of three ranks, of which some wait in a collective; SIGKILL ends all."""
    for rank in range(3):
        events: list[Line] = [*run_events(header(rank, 3, **of_headers))[:-1]]
        if rank in waiting:
            events.append(hanging("all_reduce", 400, seq=4))
        events.append(LINES["heartbeat"](name="heartbeat", args=heartbeat(30_000)))
        (folder / f"trace.rank{rank:05d}.json").write_bytes(encode(events))
