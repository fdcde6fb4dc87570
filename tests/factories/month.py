"""A training run in fast motion: fake clock, real recorder, real writer."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from unittest.mock import patch

from dsprof.environment.machine import boot_id
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.rolling.writer import RollingWriter
from dsprof.trace.schema import Collective, Group, Header, MemorySample, Trailer
from dsprof.trace.scope import clock
from dsprof.trace.writing.writer_input import WriterInput

STEP_NS = 860_000_000
"""A month has 3 million steps of so long."""

SERVED_NS = 5 * 10**9
"""Time between two requests to a server, which has no steps."""

STARTED_EPOCH_NS = 1_700_000_000_000_000_000
WAITING = 5_000
"""Records that may wait for the writer; with more, the run waits."""

_COLLECTIVE_NS = 2_000_000
_HOUR_NS = 3600 * 10**9


def size_of(folder: Path) -> int:
    """Return the bytes of the files in a folder, which may come and go meanwhile."""
    size = 0
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                size += path.stat().st_size
    return size


class FakeClock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now_ns = clock()

    def __call__(self) -> int:
        return self.now_ns

    def pass_ns(self, duration_ns: int) -> None:
        """Let time pass."""
        self.now_ns += duration_ns


class FastMotion:
    """One rank that trains: each step has a few collectives, some steps are slow."""

    def __init__(
        self,
        folder: Path,
        budget_bytes: int,
        rank: int = 0,
        world_size: int = 2,
        start: int = 0,
        before: RollingWriter | None = None,
        local_rank: int = -1,
    ) -> None:
        """`start` counts the starts of a job: each begins an hour after the one before."""
        self.clock = FakeClock()
        with patch("dsprof.recording.recorder.progress.compiled", None):  # C has the real clock
            self.recorder = Recorder(lambda: True)
        self.steps = 0
        self.slow: dict[int, float] = {}  # step -> how many times as long it takes
        self._random = random.Random(1)
        self._turns = 0  # that the writer has begun
        header = Header(
            1, f"month {start}", rank, world_size, "host", 1, STARTED_EPOCH_NS + start * _HOUR_NS,
            self.clock.now_ns, boot_id(), local_rank, config={"mode": "always"}, job_keys=["agent"],
        )  # fmt: skip
        outbox = self.recorder.outbox
        source = WriterInput(
            records=outbox.records,
            definitions=outbox.definitions,
            unfinished=list,
            sample_memory=lambda at, step: MemorySample(at, self.clock(), step, rss_bytes=10**9),
            prepare=list,
            prepare_late=list,
            disclose=lambda definition: definition,
            show_life=self._count_turn,
        )
        self.writer = RollingWriter(folder, header, source, budget_bytes, before)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record; the trace ends with a trailer."""
        with (
            patch("dsprof.recording.recorder.progress.clock", self.clock),
            patch("dsprof.trace.rolling.writer.clock", self.clock),
        ):
            self.recorder.arm()
            self.recorder.progress.begin_again()
            self.recorder.outbox.define(Group(1, "key", "world", ranks=[0, 1], size=2))
            self.writer.start()
            yield
            self.writer.close(lambda: Trailer("exit", steps=self.steps), [])

    def wait_for_tails(self) -> None:
        """Wait until the writer has opened the files in which the newest steps are."""
        while self.writer._tails is None:
            time.sleep(0.001)

    def train(self, steps: int, each: Callable[[], None] = lambda: None) -> None:
        """Take steps as fast as the writer can follow; `each` is called once in a while."""
        for _ in range(steps):
            self._step()
            if len(self.recorder.outbox.records) > WAITING:
                each()
                while self.recorder.outbox.records and not self.writer.is_done:
                    time.sleep(0.001)
        each()

    def serve(self, requests: int) -> None:
        """Answer a request each SERVED_NS, without steps; the writer takes a turn for each."""
        with (
            patch("dsprof.trace.writing.writer.INTERVAL_S", 0.001),
            patch("dsprof.trace.writing.writer._SHORTEST_WAIT_S", 0.001),
        ):
            for _ in range(requests):
                self.clock.pass_ns(SERVED_NS - _COLLECTIVE_NS)
                self._communicate("")
                self.wait_for_writer()

    def wait_for_writer(self) -> None:
        """Wait until what was recorded by now is written."""
        before = self._turns
        while self._turns < before + 2 and not self.writer.is_done:
            time.sleep(0.001)

    def _count_turn(self) -> None:
        self._turns += 1

    def _step(self) -> None:
        times = self.slow.get(self.steps, 1 + self._random.gauss(0, 0.01))
        part_ns = int(STEP_NS * times) // 4
        progress = self.recorder.progress
        for name, collectives in (("forward", 0), ("backward", 3), ("step", 1)):
            phase = progress.enter(name)
            self.clock.pass_ns(part_ns)
            for _ in range(collectives):
                self._communicate(name)
            progress.leave(phase)
        self.clock.pass_ns(part_ns)
        progress.end_step("optimizer")
        self.steps += 1

    def _communicate(self, phase: str) -> None:
        now_ns, number = self.clock(), next(self.recorder.ids)
        self.clock.pass_ns(_COLLECTIVE_NS)
        self.recorder.outbox.add(
            Collective(
                number,
                1,
                number,
                1 << 24,
                1 << 22,
                now_ns,
                "all_reduce",
                dtype="float32",
                reduce_op="SUM",
                step=self.steps if phase else -1,
                phase=phase,
                return_ns=now_ns + _COLLECTIVE_NS,
                done_ns=now_ns + _COLLECTIVE_NS,
                blocked_ns=_COLLECTIVE_NS,
                waits=1,
                thread=get_ident(),
            )
        )
