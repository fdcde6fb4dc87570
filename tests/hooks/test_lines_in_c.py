"""Lines that C writes are those that Python would write, to the byte.

`handed_over` compares them for all that the hooks of other tests record.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dsprof.hooks.torch.steps import TrainingLoopHook
from dsprof.hooks.wire.process_group import ProcessGroupHook
from dsprof.recording.recorder.hot_state import compiled
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Collective, Step
from dsprof.trace.writing.encode import Encoder
from dsprof.trace.writing.writer_input import NOTHING_WRITTEN
from tests.handed_over import handed_over, lines_in_c, lines_in_python

Install = Callable[..., Recorder]
RANDOM = random.Random(4)
TIMES = ("issue_ns", "return_ns", "pending_ns", "done_ns", "wait_ns", "waited_ns", "blocked_ns")
OTHERS = (
    *("id", "group", "seq", "nbytes", "elements", "tensors", "request", "site", "step", "waits"),
    *("micro_step", "engine", "flush", "fetch", "coalesced", "stream"),
)
TEXTS = ("dtype", "requested", "phase", "op")
NUMBERS = (-1, 0, 1, 2, 9, 10, 99, 100, 1 << 31, (1 << 63) - 1, -(1 << 63))
WORDS = ("", "float32", "a b", 'a "quoted" one', "back\\slash", "tab\t", "ä", "\x7f", "x" * 200)


def calls(install: Install, count: int = 1) -> list[Any]:
    """Return collectives as a hook in C has noted them."""
    recorder = install(ProcessGroupHook, TrainingLoopHook)
    while (number := len(recorder.outbox.records)) < count + 1:
        work = dist.all_reduce(torch.zeros(4), async_op=number % 2 == 1)
        if work is not None:
            work.wait()
    noted = list(recorder.outbox.records)[1:]  # the first one of a process may be left to Python
    assert {type(one).__name__ for one in noted} == {"Call"}
    return noted


def time_ns() -> int:
    size = 10 ** RANDOM.randrange(17)
    return RANDOM.choice((0, 1, 999, 1000, 1001, RANDOM.randrange(size), RANDOM.randrange(size)))


def test_any_number_and_any_word(install: Install) -> None:
    noted = calls(install, 400)
    for one in noted:
        for name in TIMES:
            setattr(one, name, time_ns())
        for name in RANDOM.sample(OTHERS, 4):
            setattr(one, name, RANDOM.choice(NUMBERS))
        setattr(
            one,
            RANDOM.choice(TEXTS),
            RANDOM.choice(WORDS),
        )
        one.captured = RANDOM.random() < 0.1
        one.is_estimated = RANDOM.random() < 0.1
        one.thread = RANDOM.randrange(1, 80)
    assert lines_in_c(noted, rank=3) == lines_in_python(noted, rank=3)


def test_collectives_that_overlap_are_on_lanes_of_their_own(install: Install) -> None:
    noted = calls(install, 300)
    for number, one in enumerate(noted):
        one.issue_ns, one.done_ns = 1 + number // 3, 2 + number * (7 if number < 150 else 1)
    assert lines_in_c(noted) == lines_in_python(noted)
    names = [line for line in lines_in_c(noted) if b"collectives 100" in line]
    assert len(names) == 1


def encoder_of(noted: deque[Any]) -> Encoder:
    """Return one that has a lane for what is noted, and take out the first."""
    assert compiled is not None
    encoder = Encoder(0, 1, lines_in_c=compiled.Lines)
    assert encoder.in_c.take(noted, 5, False) == NOTHING_WRITTEN  # its lanes have no name yet
    first = compiled.made(noted.popleft())
    if isinstance(first, Collective):
        first.done_ns = 2
    encoder.record(first)
    return encoder


def test_the_usual_collective_is_written_in_c(install: Install) -> None:
    noted = deque(calls(install, 20))
    take = encoder_of(noted).in_c.take
    noted.insert(7, Step(3, 1, 2))
    data, *others = take(noted, 5, False)
    assert (data.count(b",\n"), *others, len(noted)) == (5, 5, -1, (), 15)
    assert take(noted, 99, False)[1:] == (2, -1, ())
    assert take(noted, 99, False) == NOTHING_WRITTEN  # a step is not one of them
    assert isinstance(noted[0], Step)
    noted.popleft()
    assert take(noted, 99, False)[1] == 12
    assert take(noted, 99, False) == NOTHING_WRITTEN


def test_out_of_memory_leaves_the_records(install: Install) -> None:
    """With phases only: torch ends the process if it cannot allocate the options of a call."""
    memory = pytest.importorskip("_testcapi")
    recorder = install(TrainingLoopHook)
    for _ in range(99):
        recorder.progress.leave(recorder.progress.enter("forward"))
    noted = deque(recorder.outbox.records)
    take = encoder_of(noted).in_c.take
    counts = set()
    for allocation in range(9):
        before, count = [*noted], 0
        memory.set_nomemory(allocation, allocation + 1)
        try:
            count = take(noted, 9, True)[1]
        except MemoryError:
            pass
        finally:
            memory.remove_mem_hooks()
        assert [*noted] == before[count:]
        counts.add(count)
    assert counts == {0, 9}


def test_sums_are_of_one_step_and_thread(install: Install) -> None:
    noted = deque(calls(install, 9))
    in_c = encoder_of(noted).in_c
    thread, other = noted[0].thread, noted[0].thread + 1
    in_c.know_thread(other, 9)
    for number, one in enumerate(noted):
        one.step, one.nbytes, one.blocked_ns = number // 4, 10, number
        one.waits, one.issue_ns, one.done_ns, one.waited_ns = 1, 100, 100, 100 + number
        one.op, one.thread = ("all_reduce", "broadcast")[number == 2], (thread, other)[number == 3]
        one.phase = ("backward", "forward", "step")[number % 3]
    assert in_c.take(noted, 99, True)[1:] == (
        *(4, 0),
        (
            ("comm", "all_reduce", 1, 10, 0, thread, False),
            ("comm", "all_reduce", 1, 10, 1, thread, True),
            ("comm", "broadcast", 1, 10, 2, thread, True),
            ("comm", "all_reduce", 1, 10, 3, other, False),
        ),
    )
    assert in_c.take(noted, 2, True)[1:] == (
        *(2, 1),
        (("comm", "all_reduce", 2, 20, 9, thread, True),),
    )
    assert [one.step for one in noted] == [1, 1]


def test_of_many_names_the_last_ones_wait(install: Install) -> None:
    noted = deque(calls(install, 40))
    take = encoder_of(noted).in_c.take
    for number, one in enumerate(noted):
        one.op = f"op {number}"
    sums = [one for _ in range(3) for one in take(noted, 99, True)[3]]
    assert [name for _, name, *_ in sums] == [f"op {number}" for number in range(39)]


def test_phases_are_written_in_c_but_for_their_names(install: Install) -> None:
    recorder = install(TrainingLoopHook)
    progress = recorder.progress
    progress.leave(progress.enter("forward", 2, 1))
    progress.leave(progress.enter("backward"))
    progress.leave(progress.enter('of "mine"'))
    assert [phase.name for phase in handed_over(recorder)] == ["forward", "backward", 'of "mine"']
