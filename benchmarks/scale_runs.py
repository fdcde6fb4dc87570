"""Writes runs of many ranks, quickly: all ranks share the lines of two bodies.

In `SLOW_STEPS` of the steps one rank arrives `LATE_NS` later than the others, who wait for it.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dsprof.trace import schema as trace
from dsprof.trace.lines import COMM_LINE, LINES, Line
from dsprof.trace.rolling.parts import ALWAYS, SERIES, TAILS, part_of
from dsprof.trace.rolling.rollups import RollUps

SLOW_STEPS = 50
STEP_NS = 100_000_000
LATE_NS = 40_000_000
STARTED_NS = 1_700_000_000_000_000_000
_NEWEST = 40
"""Steps in detail at the end of a rolling recording."""
_CALL_NS = 2_000_000
_ENCODE = msgspec.json.Encoder().encode
_END = _ENCODE(LINES["trailer"](args=trace.Trailer(reason="exit"))) + b"\n]\n"


class Size(NamedTuple):
    """How large a run is."""

    ranks: int
    steps: int
    calls: int  # of a step

    @property
    def slow_rank(self) -> int:
        """The rank that is late."""
        return self.ranks * 2 // 3

    @property
    def slow_steps(self) -> range:
        """The steps in which it is."""
        first = self.steps // 2
        return range(first, first + min(SLOW_STEPS, self.steps // 4))


def write_run(folder: Path, size: Size, *, is_packed: bool = False) -> None:
    """Write a trace of each rank; packed, it is gzip."""
    folder.mkdir(parents=True, exist_ok=True)
    pack = gzip.compress if is_packed else bytes
    ending = ".json.gz" if is_packed else ".json"
    bodies = {
        is_slow: pack(_lines(body(size, is_slow=is_slow)) + _END) for is_slow in (False, True)
    }
    for rank in range(size.ranks):
        with (folder / f"trace.rank{rank:05d}{ending}").open("wb") as file:
            file.write(pack(b"[\n" + _lines(start(size, rank))))
            file.write(bodies[rank == size.slow_rank])


def _lines(lines: Iterable[Line]) -> bytes:
    return b"".join(_ENCODE(line) + b",\n" for line in lines)


def start(size: Size, rank: int, config: dict[str, Any] | None = None) -> Iterator[Line]:
    """Yield what is of one rank only."""
    yield LINES["header"](
        args=trace.Header(
            schema_version=trace.SCHEMA_VERSION,
            run_key="scale",
            rank=rank,
            world_size=size.ranks,
            host="bench",
            boot_id="bench",
            pid=1000 + rank,
            started_epoch_ns=STARTED_NS,
            started_monotonic_ns=1_000_000_000,
            backend="gloo",
            device="cpu",
            config=config or {},
        )
    )
    ranks = list(range(size.ranks))
    yield LINES["group"](
        args=trace.Group(
            id=1, key="world", label="world", ranks=ranks, size=size.ranks, backend="gloo"
        )
    )
    for site in range(1, 9):
        yield LINES["site"](args=trace.Site(id=site, file="train.py", line=site))


def write_sums(folder: Path, size: Size, rank: int, parts: dict[str, bytes]) -> None:
    """Write a rolling recording of a rank: its newest steps in detail, and sums of all."""
    book = folder / f"trace.rank{rank:05d}.json"
    book.write_bytes(b"[\n" + _lines(start(size, rank, {"mode": ALWAYS})) + _END)
    for ending, data in parts.items():
        part_of(book, ending).write_bytes(data)


def sums(size: Size, *, is_slow: bool) -> dict[str, bytes]:
    """Return what is beside the book, as the slow rank saw it, or all others."""
    rollups, spans = RollUps(), []
    call_ns = min(_CALL_NS, STEP_NS // 3 // (size.calls + 1))
    for step, begin, length, late in times(size):
        blocked = size.calls * call_ns + (0 if is_slow else late)
        ops = {"all_reduce": trace.OpTotals(size.calls, size.calls << 20, blocked)}
        ended_s = (STARTED_NS + begin + length) // 1_000_000_000
        spans += rollups.add(trace.StepTotals(step, begin, begin + length, {}, 0, ops), ended_s)
    lines = map(LINES["rollup"], [*spans, *rollups.end()])
    first = size.steps - _NEWEST
    newest = _lines(body(size, is_slow=is_slow, first=first))
    return {
        SERIES: gzip.compress(b"".join(_ENCODE(one) + b",\n" for one in lines)),
        TAILS[0]: _lines([LINES["segment"](args=trace.Segment(1, first - 2))]) + newest,
        TAILS[1]: b"",
    }


def times(size: Size) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, begin and length of each step, and how late one rank is in it."""
    begin = 0
    for step in range(size.steps):
        late = LATE_NS if step in size.slow_steps else 0
        length = STEP_NS + late + (step * 7919) % 1_000_000
        yield step, begin, length, late
        begin += length


def body(size: Size, *, is_slow: bool, first: int = 0) -> Iterator[Line]:
    """Yield the steps from `first` on, as the slow rank saw them, or all others."""
    for step, begin, length, late in times(size):
        if step < first:
            continue
        yield from _calls(size, step, begin, length - late, late, is_slow=is_slow)
        whole = trace.Step(step=step, start_ns=begin, end_ns=begin + length, micro_steps=1)
        yield LINES["step"](name="step", ts=begin / 1e3, dur=length / 1e3, args=whole)


def _calls(
    size: Size, step: int, begin: int, length: int, late: int, *, is_slow: bool
) -> Iterator[Line]:
    """Yield the phases of a step; its first collective is late by `late`."""
    work = length * 2 // 3
    gap = (length - work) // (size.calls + 1)
    shift = late if is_slow else 0
    for name, start_ns, end_ns in (
        ("forward", begin, begin + work // 3),
        ("backward", begin + work // 3, begin + work + shift),
    ):
        span = trace.Phase(start_ns=start_ns, end_ns=end_ns, step=step, thread=2)
        yield LINES["phase"](name=name, ts=start_ns / 1e3, dur=(end_ns - start_ns) / 1e3, args=span)
    for index in range(size.calls):
        number = step * size.calls + index + 1
        at = begin + work + index * gap + (late if index else shift)
        end = begin + work + index * gap + late + min(_CALL_NS, gap)
        args = trace.Collective(
            id=number,
            group=1,
            seq=number,
            nbytes=(1 << 20) + 1024 * (index % 7),
            elements=1 << 18,
            issue_ns=at,
            return_ns=end,
            dtype="bfloat16",
            requested="all_reduce",
            request=number,
            reduce_op="sum",
            site=1 + index % 8,
            step=step,
            phase="backward",
            thread=2,
            pending_ns=at + 500,
            done_ns=end,
            wait_ns=at,
            waited_ns=end,
            blocked_ns=end - at,
            waits=1,
        )
        yield COMM_LINE(name="all_reduce", ts=at / 1e3, dur=(end - at) / 1e3, args=args)
