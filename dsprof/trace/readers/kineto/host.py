"""The host's part of a profile: collectives as it issued them, and its work beside a device.

Collectives are torch's own record of each call, and spans of CPU backends. The work is `HostWork`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Annotated, Any

import msgspec
import numpy as np

from dsprof.files.decoding import UNDECODABLE
from dsprof.trace.columns import IntArray
from dsprof.trace.device_activity import LAUNCH, HostWork
from dsprof.trace.rank_trace import Vocabulary
from dsprof.trace.readers.call_rows import Call, message
from dsprof.trace.readers.host_calls import (
    around,
    ends_of_captures,
    is_of_capture,
    kind_of,
    outer,
)
from dsprof.trace.readers.kineto.events import (
    ANNOTATION,
    DAMAGED,
    STEP_PREFIX,
    Args,
    TraceEvent,
    on_grid,
)
from dsprof.trace.schema import Group

ISSUED = "record_param_comms"
"""Torch's records of calls of NCCL's process group, from recent releases on with sizes."""

_Shape = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]], msgspec.Meta(max_length=64)
]
_NO_COLLECTIVES = ("wait", "init")  # that torch records by the same name
_MOST_ELEMENTS = 2**58
_TYPES = {"long int": "long", "unsigned char": "byte", "signed char": "char"}


def is_issue(args: Args) -> bool:
    """Say whether a record of a call names a collective, by which kernels can find it."""
    is_collective = args.collective is not None and args.collective not in _NO_COLLECTIVES
    return is_collective and isinstance(args.external, int)


class Issues:
    """The calls of one rank by their number, and kernels that do not say what they are."""

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}
        self._unnamed: dict[int, int] = {}  # place of a kernel's call -> number of the host's

    @property
    def calls(self) -> list[Call]:
        """Collectives as issued; when that ended is not known."""
        return [call._replace(end_ns=0) for call in self._calls.values()]

    def add(self, args: Args, call: Call) -> None:
        """Keep a call that the host made."""
        if isinstance(args.external, int):
            self._calls[args.external] = call

    def leave(self, args: Args, place: int) -> None:
        """Remember a kernel without metadata by the place of its call among those of the device."""
        if isinstance(args.external, int):
            self._unnamed[place] = args.external

    def name(self, calls: list[Call]) -> None:
        """Give kernels without metadata what the host said of the call that launched them.

        A call that launched several stays apart: its size is that of all of them together.
        """
        launched = Counter(self._unnamed.values())
        for place, number in self._unnamed.items():
            if launched[number] == 1 and (issue := self._calls.get(number)) is not None:
                kernel = calls[place]
                lane, start, end = kernel.lane, kernel.start_ns, kernel.end_ns
                calls[place] = issue._replace(lane=lane, start_ns=start, end_ns=end)


def span_message(args: Args) -> tuple[int, str]:
    """Return elements and dtype of the tensors given to a span of a CPU backend; 0 if unknown.

    Torch writes them where shapes are recorded.
    """
    try:
        shapes = msgspec.json.decode(args.shapes, type=list[_Shape])
        types = msgspec.json.decode(args.types, type=list[str])
    except UNDECODABLE:
        return 0, ""
    if len(set(types)) != 1:
        return 0, ""
    elements = sum(map(prod, shapes))
    dtype = types[0].removeprefix("c10::")
    return (elements, _TYPES.get(dtype, dtype)) if elements <= _MOST_ELEMENTS else (0, "")


def in_only_group(call: Call, groups: Mapping[int, Group]) -> Call:
    """Return a span of a CPU backend with its group where the process has but one, and its size.

    Such a span names no group, and of a gather it has only the share of one rank.
    """
    known = [group for group in groups.values() if group.name]
    only = known[0] if len(known) == 1 else None
    given = call.elements * only.size if only is not None else 0
    elements, nbytes = message(call.op, call.elements, given, call.dtype)
    group = only.id if only is not None else call.group
    return call._replace(group=group, elements=elements, nbytes=nbytes)


Lane = Callable[[int | str | None], int]

_LONG_US = 10.0
"""Shorter ones delay nothing, and shorter gaps of a device are ignored."""


class HostCalls:
    """Collects calls that may keep a device idle; times in ns since `origin_us`."""

    def __init__(self, origin_us: float, words: Vocabulary, lane: Lane) -> None:
        self._origin_us = origin_us
        self._words = words
        self._lane = lane
        self._launching: set[int | str | None] = set()  # threads
        self._is_recorded = False
        self._calls, self._operators, self._marks = _Spans(), _Spans(), _Spans()

    def add(self, call: TraceEvent, kind: int) -> None:
        """Take a call of the runtime, or a range of a known kind."""
        self._is_recorded = True
        if kind == LAUNCH:
            self._launching.add(call.tid)
        if call.dur >= _LONG_US or is_of_capture(call.name):
            self._calls.add([call], self._words, self._lane)

    def add_operators(self, operators: Sequence[TraceEvent]) -> None:
        """Take the operators and annotations of a chunk."""
        self._is_recorded |= any(event.cat != ANNOTATION for event in operators)
        long = [event for event in operators if event.dur >= _LONG_US]
        marks = [event for event in long if event.cat == ANNOTATION]
        if marks:
            self._marks.add(marks, self._words, self._lane)
            long = [event for event in long if event.cat != ANNOTATION]
        self._operators.add(long, self._words, self._lane)

    def work(self, words: Vocabulary, *, shows_python: bool) -> HostWork | None:
        """Return all calls; None where nothing of the host was recorded."""
        if not self._is_recorded:
            return None
        columns = (self._calls, self._operators, self._marks)
        calls, operators, marks = (spans.table(self._origin_us) for spans in columns)
        names = list(words)
        calls[2] = ends_of_captures(calls, names)
        kinds = np.array([kind_of(name) for name in names], np.int64)[calls[3]]
        is_named = np.array([_is_named(name) for name in names], np.bool_)
        launching = [self._lane(thread) for thread in self._launching]
        launches, owns = (
            np.isin(spans[0], launching) | (not launching) for spans in (calls, operators)
        )
        running = [operators[1:3, owns], calls[1:3, kinds == LAUNCH]]
        is_step = np.array([name.startswith(STEP_PREFIX) for name in names], np.bool_)
        return HostWork(
            words=names,
            name=calls[3],
            kind=kinds,
            start_ns=calls[1],
            end_ns=calls[2],
            operator=around(calls[:3], operators[:, is_named[operators[3]]], outermost=True),
            annotation=around(calls[:3], marks[:, ~is_step[marks[3]]], outermost=False),
            launches=launches,
            operators=outer(np.concatenate(running, axis=1)),
            shows_python=shows_python,
        )


class _Spans:
    """Events as columns: kept themselves they would fill memory that the next chunk needs."""

    def __init__(self) -> None:
        self._threads, self._names = array("q"), array("q")
        self._starts, self._lasts = array("d"), array("d")

    def add(self, events: Sequence[TraceEvent], words: Vocabulary, lane: Lane) -> None:
        """Take events, with the numbers of their threads and names."""
        threads: list[Any] = [event.tid for event in events]
        if set(map(type, threads)) != {int}:
            threads = [lane(thread) for thread in threads]
        self._threads.extend(threads)
        self._names.extend([words[event.name] for event in events])
        self._starts.extend([event.ts for event in events])
        self._lasts.extend([event.dur for event in events])

    def table(self, origin_us: float) -> IntArray:
        """Return rows of threads, starts, ends and names, of events with sound times."""
        starts, lasts = (np.array(x, np.float64) for x in (self._starts, self._lasts))
        start, end = on_grid(starts, lasts, origin_us)
        threads, names = (np.array(x, np.int64) for x in (self._threads, self._names))
        return np.stack([threads, start, end, names])[:, start > DAMAGED]


def _is_named(operator: str) -> bool:
    """Say whether an operator's name tells what the program asked for."""
    return "::" in operator and not operator.startswith("autograd::")
