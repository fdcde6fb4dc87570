"""A writer over records that are made by hand."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any

from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_trace
from dsprof.trace.schema import Collective, Header, MemorySample, Record, Step, Trailer
from dsprof.trace.window import Window
from dsprof.trace.writing.writer import TraceWriter
from dsprof.trace.writing.writer_input import WriterInput

START_NS = 1_000_000
WHOLE_RUN = Window()


def collective(number: int, step: int, **fields: Any) -> Collective:
    issue_ns = START_NS + number * 1000
    record = Collective(
        number, 1, number, 64, 16, issue_ns, "all_reduce", dtype="float32", reduce_op="SUM",
        requested="all_reduce", request=number, step=step, phase="backward", thread=7,
        return_ns=issue_ns + 10, done_ns=issue_ns + 500, wait_ns=issue_ns + 20,
        waited_ns=issue_ns + 500, blocked_ns=480, waits=1,
    )  # fmt: skip
    for name, value in fields.items():
        setattr(record, name, value)
    return record


def step_end(step: int) -> Step:
    return Step(step, START_NS + step, START_NS + step + 1, 1, "user")


class Run:
    """A writer over hand-made records; `close` returns what a reader makes of the file."""

    def __init__(self, folder: Path, window: Window = WHOLE_RUN, budget: int = 10**9) -> None:
        self.records: deque[Record] = deque()
        self.definitions: deque[Any] = deque()
        self.unfinished: list[Collective] = []
        header = Header(1, "run", 0, 2, "host", os.getpid(), 5, START_NS)
        source = WriterInput(
            records=self.records,
            definitions=self.definitions,
            unfinished=lambda: self.unfinished,
            sample_memory=lambda at, step: MemorySample(at, START_NS, step, rss_bytes=9),
            prepare=list,
            prepare_late=list,
            disclose=lambda definition: definition,
        )
        self.writer = TraceWriter(folder, header, source, window, budget)

    def close(self) -> RankTrace:
        self.writer.start()
        return self.close_started()

    def close_started(self) -> RankTrace:
        self.writer.close(lambda: Trailer("disable", events=self.writer.events), self.unfinished)
        assert self.writer.error is None
        return read_trace(self.writer.path)


def after_one_look(run: Run) -> list[float]:
    """Let the writer look for records once and then end; return how long it waited each time."""
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) > 1:
            run.unfinished.clear()
            run.writer._closing = True

    run.writer._wake.wait = wait
    run.writer._trailer = lambda: Trailer("disable")
    run.writer.start()
    run.writer.join()
    assert run.writer.error is None
    return waits
