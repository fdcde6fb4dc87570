"""Output of `ncclras`, text or JSON: communicators whose ranks differ, or do not answer."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from dsprof.files.decoding import UNDECODABLE

_OF_JSON = '"communicators_count":'
START = re.compile(rf"^Job summary\s*\n=+|{_OF_JSON}", re.MULTILINE)
LARGEST_BYTES = 1 << 24
"""JSON lists all ranks of all communicators, with 600 bytes each."""
_HEAD = re.compile(r"#(\d+-\d+) \([0-9a-f]+\) (\w+)")
_OPERATION = re.compile(r"Communicator ranks have different (?:(\w+) )?operation counts")
_COUNT = re.compile(
    # A single rank is named in the line that counts it.
    r"(?:Rank (?P<rank>\d{1,18})|(?P<ranks>\d{1,18}) ranks) ha(?:s|ve) "
    r"(?:launched up to operation (?P<operations>\d{1,18})|not launched any operations)"
)
_MISSING = re.compile(r"Missing communicator data from (\d{1,18}) ranks?")
_LOST = re.compile(
    r"(?:Missing communicator data from )?(\d{1,18}) job process(?:es)?"
    r"(?: (?:is|are) considered dead|$)"
)
_LOST_PROCESS = re.compile(r"Process (\d{1,10}) on node (\S{1,255})")
_LISTED = re.compile(r"The missing ranks?: (\d{1,7}(?:,\d{1,7}){0,99999})$")  # up to NCCL 2.25
_REPORTED = re.compile(
    r"(?:Rank (?P<rank>\d{1,18})|(?P<ranks>\d{1,18}) ranks) reported (?P<what>[^-]{1,60}?)(?: --|$)"
)
_RANK = re.compile(r"Rank (\d{1,18}) -- ")
_PROCESS = re.compile(
    r"Rank (\d{1,18}) .{0,200} managed by process (\d{1,10}) on node (\S{1,255})$"
)
_MOST = 100_000
_ERRORS = (  # ncclResult_t
    *("Success", "Unhandled CUDA error", "System error", "Internal error", "Invalid argument"),
    *("Invalid usage", "Remote process error", "NCCL operation in progress"),
)
_NONE = (0, 7)
_LACKS_COMMA = re.compile(r'(?<=\d)(?=[ \t\r]*\n\s*"status":)')
"""Where NCCL 2.28 forgets one, in each rank that is missing."""

_Number = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]


@dataclass(slots=True)
class Count:
    """So many ranks have called so many operations; RAS names them where they are few."""

    ranks: int
    operations: int
    named: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Failure:
    """So many ranks report an error of NCCL; RAS names them where they are few."""

    ranks: int
    what: str
    named: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Communicator:
    """A communicator of which RAS says that something is wrong; ranks are numbered in it.

    One whose ranks differ in several operations is listed with each. Processes of no communicator
    that is left are counted as silent in one without a name.
    """

    name: str
    op: str = ""
    counts: list[Count] = field(default_factory=list)
    silent: int = 0  # so many ranks did not answer
    missing: list[int] = field(default_factory=list)  # those of them that RAS names
    failures: list[Failure] = field(default_factory=list)
    processes: dict[int, tuple[int, str]] = field(default_factory=dict)  # pid and host, by rank

    @property
    def behind(self) -> Count | None:
        """The ranks that have called least, where others have called more."""
        ordered = sorted(self.counts, key=lambda count: count.operations)
        return ordered[0] if len(ordered) > 1 else None


class _Reach(msgspec.Struct, frozen=True):
    unresponsive: bool = False


class _State(msgspec.Struct, frozen=True):
    init_state: int = 0
    async_error: int = 0


class _Process(msgspec.Struct):
    rank: _Number
    host: str = ""
    pid: int = -1  # of a process that RAS does not know


class _Missing(_Process):
    status: _Reach = _Reach()


class _Rank(_Process):
    status: _State = _State()
    collective_counts: dict[str, _Number] = {}


class _Communicator(msgspec.Struct):
    hash: str
    ranks: list[_Rank] = []
    missing_ranks: list[_Missing] = []


class _Status(msgspec.Struct):
    communicators: list[_Communicator]


def communicators(text: str) -> list[Communicator] | None:
    """Return the communicators whose ranks differ, failed or do not answer; None of bad JSON."""
    if _OF_JSON not in text:
        found = _printed(text)
    else:
        text = text[text.find("{") : text.rfind("}") + 1]  # without lines of a shell
        try:
            status = msgspec.json.decode(_LACKS_COMMA.sub(",", text), type=_Status)
        except UNDECODABLE:
            return None
        found = [one for listed in status.communicators for one in _listed(listed)]
    return [one for one in found if one.behind or one.silent or one.failures]


def _printed(text: str) -> list[Communicator]:
    found: list[Communicator] = []
    job = Communicator("")
    named: list[int] = []
    for line in map(str.strip, text.splitlines()):
        if head := _HEAD.match(line):
            if len(found) == _MOST:
                break
            found.append(Communicator(head[1]))
            named = []
        elif not found:
            if lost := _LOST.match(line):
                job.silent += int(lost[1])
            elif (process := _LOST_PROCESS.match(line)) and len(job.processes) < _MOST:
                job.processes[len(job.processes)] = int(process[1]), process[2]
            continue
        elif operation := _OPERATION.match(line):
            if found[-1].counts:
                found.append(Communicator(found[-1].name))
            found[-1].op, named = operation[1] or "", []
        elif count := _COUNT.match(line):
            named = [int(count["rank"])] if count["rank"] else []
            one = Count(int(count["ranks"] or 1), int(count["operations"] or 0), named)
            found[-1].counts.append(one)
        elif failed := _REPORTED.match(line):
            named = [int(failed["rank"])] if failed["rank"] else []
            found[-1].failures.append(Failure(int(failed["ranks"] or 1), failed["what"], named))
        elif silent := _MISSING.match(line):
            found[-1].silent, named = int(silent[1]), found[-1].missing
        elif listed := _LISTED.match(line):
            named += map(int, listed[1].split(","))
        elif (rank := _RANK.match(line)) and len(named) < _MOST:
            named.append(int(rank[1]))
        if process := _PROCESS.match(line):
            found[-1].processes[int(process[1])] = int(process[2]), process[3]
    return found if any(one.silent for one in found) else [job, *found]


def _listed(one: _Communicator) -> Iterator[Communicator]:
    """Yield a communicator once for each operation in which its ranks differ."""
    everyone: list[_Process] = [*one.ranks, *one.missing_ranks]
    processes = {rank.rank: (rank.pid, rank.host) for rank in everyone if rank.pid >= 0}
    missing = [rank.rank for rank in one.missing_ranks if rank.status.unresponsive]
    failed: defaultdict[int, list[int]] = defaultdict(list)
    for rank in one.ranks:
        state = rank.status
        if error := state.init_state if state.async_error in _NONE else state.async_error:
            failed[error].append(rank.rank)
    failures = [
        Failure(len(of), _ERRORS[error] if 0 <= error < len(_ERRORS) else f"error {error}", of)
        for error, of in failed.items()
        if error not in _NONE
    ]
    yield Communicator(
        one.hash, silent=len(missing), missing=missing, failures=failures, processes=processes
    )
    for op in sorted({op for rank in one.ranks for op in rank.collective_counts}):
        ranks: defaultdict[int, list[int]] = defaultdict(list)
        for rank in one.ranks:
            ranks[rank.collective_counts.get(op, 0)].append(rank.rank)
        counts = [
            Count(len(of), operations, of if 2 * len(of) <= len(one.ranks) else [])
            for operations, of in ranks.items()
        ]
        yield Communicator(one.hash, op, counts, processes=processes)
