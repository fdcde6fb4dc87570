"""What the host did beside a device, from a profiler's events: see `HostWork`."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dsprof.trace.device import LAUNCH, HostWork
from dsprof.trace.readers.enclosing import around, outer
from dsprof.trace.readers.host_calls import kind_of
from dsprof.trace.readers.kineto.events import ANNOTATION, STEP_PREFIX, TraceEvent
from dsprof.trace.readers.kineto.times import DAMAGED, on_grid
from dsprof.trace.table import Vocabulary

_IntArray = npt.NDArray[np.int64]
Lane = Callable[[int | str | None], int]

_LONG_US = 10.0
"""Shorter ones hold nobody up, and shorter gaps of a device are not looked into."""


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
        if call.dur >= _LONG_US:
            self._calls.add([call], self._words, self._lane)

    def add_operators(self, operators: Sequence[TraceEvent]) -> None:
        """Take the operators and annotations of a chunk."""
        self._is_recorded |= bool(operators)
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

    def table(self, origin_us: float) -> _IntArray:
        """Return rows of threads, starts, ends and names, of events with sound times."""
        starts, lasts = (np.array(x, np.float64) for x in (self._starts, self._lasts))
        start, end = on_grid(starts, lasts, origin_us)
        threads, names = (np.array(x, np.int64) for x in (self._threads, self._names))
        return np.stack([threads, start, end, names])[:, start > DAMAGED]


def _is_named(operator: str) -> bool:
    """Say whether an operator's name tells what the program asked for."""
    return "::" in operator and not operator.startswith("autograd::")
