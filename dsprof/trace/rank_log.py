"""One rank as the log of a run describes it; as reported by libraries, nothing measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

FROM_OUTSIDE = "ended from outside"
"""The kind of fact that says why a job was ended: Slurm's "time limit", "node failure"; SIGTERM."""

FAILED, FAILED_FIRST = "torchrun", "first failure"
"""The kinds that torchrun's list states of a rank: that it failed; how, if it did so first."""

LAUNCHER = "launcher"
"""The kind that says how a process of unknown rank failed, as another launcher reports it."""

EXCEPTION = "exception"
"""The kind that gives type and message of the exception that ended a rank."""

OF_RAY = "killed or crashed"
"""How a process failed that Ray lost."""

RAY_MEMORY = "its node ran low on memory"
"""How a process failed that Ray killed for the memory of its node."""

TRACEBACK = "first traceback"
"""The kind that gives type and message of an exception that ended a process of unknown rank."""

HOST_MEMORY = "out of memory"
"""How a process failed that took more memory of its host than Slurm granted."""

OF_JOB = frozenset({FROM_OUTSIDE, LAUNCHER, TRACEBACK})
"""Kinds of facts that no rank states."""

NOT_OF_NCCL = OF_JOB | {"loss scale", FAILED, FAILED_FIRST, EXCEPTION}
"""Kinds of facts that others than NCCL, RCCL and their plugins state."""

MOST_VALUES = 64
"""This many facts of a kind are kept: a log of gigabytes comes to a few kilobytes."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The message of torch's allocator when a device had no more memory; -1 where it did not say.

    `process_bytes` is all that the process holds on the device, torch's and what is not torch's;
    `unallocated_bytes` is what torch holds unused.
    """

    device: int
    asked_bytes: int
    capacity_bytes: int
    free_bytes: int
    allocated_bytes: int
    unallocated_bytes: int
    process_bytes: int = -1
    allowed_bytes: int = -1  # by set_per_process_memory_fraction
    others: tuple[tuple[int, int], ...] = ()  # pid and bytes of other processes
    kind: str = ""  # of device, as torch says it: CUDA, HIP, XPU, NPU


@dataclass(frozen=True, slots=True)
class CollectiveTimeout:
    """A collective that torch's watchdog gave up; -1 and "" where it did not say."""

    op: str
    seq: int = -1
    elements: int = -1
    waited_ms: int = -1
    group: str = ""
    absent: tuple[int, ...] = ()  # ranks that did not come, as the message says


@dataclass(frozen=True, slots=True)
class LastWork:
    """The last works of a group when a watchdog gave up, as numbers of its collectives.

    `timed_out` is -1 where it was the watchdog of another rank, of `by_rank` if that is known.
    """

    group: str
    timed_out: int
    enqueued: int
    completed: int
    by_rank: int = -1


@dataclass(frozen=True, slots=True)
class LoggedCalls:
    """Like calls as DeepSpeed's comms_logger prints them; sums over the calls.

    `total_ns` is None where its times are wrong beyond repair. `world_size` is what its own two
    bandwidths imply, 0 where they imply none. `factor` is how often the size went into its
    bandwidth, 0 where rounding hides it.
    """

    calls: int
    total_ns: int | None
    world_size: int = 0
    factor: int = 0
    straggler_ns: int | None = None
    source: str = "lines"  # or "summary"

    def __add__(self, other: LoggedCalls) -> LoggedCalls:
        times = (self.total_ns, other.total_ns)
        return LoggedCalls(
            calls=self.calls + other.calls,
            total_ns=None if None in times else sum(time or 0 for time in times),
            world_size=max(self.world_size, other.world_size),
            factor=max(self.factor, other.factor),
            straggler_ns=self.straggler_ns if other.straggler_ns is None else other.straggler_ns,
            source=self.source,
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of a bandwidth benchmark; 0 and "" where its table does not tell."""

    op: str
    nbytes: int
    busbw: float  # bytes/s
    ranks: int = 0
    hosts: int = 0
    device: str = ""
    wrong: int = 0  # elements that came out otherwise than they must
    host_names: tuple[str, ...] = ()  # of few hosts


@dataclass(frozen=True, slots=True)
class Throughput:
    """Figures that DeepSpeed's timer prints every few steps; -1 where a release does not."""

    step: int
    samples_per_s: float
    allocated_gib: float = -1.0


@dataclass(frozen=True, slots=True)
class LogMark:
    """A warning or error, and where in its file it is."""

    at_bytes: int
    is_error: bool
    text: str


@dataclass(frozen=True, slots=True)
class LogStarts:
    """A log of a job that was started several times: only the last start is read."""

    file: str
    count: int
    last_at_bytes: int
    errors: tuple[str, ...]  # before the last start


CallKind = tuple[str, str, int]
"""Operation, calling function ("" unless the logger was set to print it), bytes of a message."""


Failure = str | OutOfMemory | CollectiveTimeout | LogMark
"""A warning is its text."""


def failure_text(failure: Failure) -> str:
    """Return what a failure is known by: a text, which caches can hold."""
    return failure if isinstance(failure, str) else repr(failure)


_MOST_REPORTS = 1 << 14
_MOST_VARIABLES = 1000


@dataclass(slots=True)
class Room:
    """How many facts may still be kept, of all ranks of a file; `refused` counts the others."""

    left: int = 1 << 62
    refused: int = 0

    def take(self) -> bool:
        """Take the place of one; false if none is left."""
        self.left -= 1
        self.refused += self.left < 0
        return self.left >= 0


@dataclass(slots=True)
class RankLog:
    """Facts of one rank, each with how many lines say so."""

    host: str = ""  # as its own lines name it
    facts: dict[str, dict[str, int]] = field(default_factory=dict)  # kind -> value -> lines
    variables: dict[str, str] = field(default_factory=dict)  # as NCCL took them
    warnings: dict[str, int] = field(default_factory=dict)  # text -> lines
    out_of_memory: list[OutOfMemory] = field(default_factory=list)
    timeouts: list[CollectiveTimeout] = field(default_factory=list)
    last_works: list[LastWork] = field(default_factory=list)
    calls: dict[CallKind, LoggedCalls] = field(default_factory=dict)
    measured: list[Measured] = field(default_factory=list)
    throughput: list[Throughput] = field(default_factory=list)
    marks: list[LogMark] = field(default_factory=list)
    starts: list[LogStarts] = field(default_factory=list)  # of files that hold several
    nbytes: int = 0  # of its file
    comms_logger: str = ""  # what is wrong with the times of DeepSpeed's logger, "" if nothing
    allocator_settings: str = ""  # PYTORCH_ALLOC_CONF, where a shell or launcher echoed it
    strays: frozenset[str] = frozenset()  # texts of failures that no line gives a rank: of any
    room: Room = field(default_factory=Room, repr=False, compare=False)

    def failures(self) -> frozenset[str]:
        """Return the texts of what failed, or was warned of, that is of this rank and no stray."""
        found: list[Failure] = [*self.warnings, *self.out_of_memory, *self.timeouts, *self.marks]
        return frozenset(map(failure_text, found)) - self.strays

    def is_stray(self, failure: Failure) -> bool:
        """Say whether no line gives a failure a rank."""
        return failure_text(failure) in self.strays

    def say(self, kind: str, value: str, lines: int = 1) -> None:
        """Count a line that states a fact."""
        self._count(self.facts.setdefault(kind, {}), value, lines)

    def warn(self, text: str, lines: int = 1) -> None:
        """Count a warning or error."""
        self._count(self.warnings, text, lines)

    def mark(self, mark: LogMark) -> None:
        """Take where a warning or error is."""
        self._extend(self.marks, [mark])

    def set(self, variable: str, value: str) -> None:
        """Take the value of a variable, unless an earlier line tells one."""
        is_new = variable not in self.variables and len(self.variables) < _MOST_VARIABLES
        if is_new and self.room.take():
            self.variables[variable] = value

    def report(self, throughput: Throughput) -> None:
        """Take what a timer printed."""
        if len(self.throughput) < _MOST_REPORTS and self.room.take():
            self.throughput.append(throughput)

    def add(self, other: RankLog) -> None:
        """Take over what another log says of the same rank; `other` stays as it is."""
        self.strays = (self.strays | other.strays) - self.failures() - other.failures()
        self.host = self.host or other.host
        for kind, values in other.facts.items():
            for value, lines in values.items():
                self.say(kind, value, lines)
        for text, lines in other.warnings.items():
            self.warn(text, lines)
        self.variables = other.variables | self.variables
        self._extend(self.out_of_memory, other.out_of_memory)
        self._extend(self.timeouts, other.timeouts)
        self._extend(self.last_works, other.last_works)
        self._extend(self.marks, other.marks)
        self._extend(self.starts, other.starts)
        self.nbytes = max(self.nbytes, other.nbytes)
        self.measured += other.measured
        self.throughput += other.throughput
        self.comms_logger = self.comms_logger or other.comms_logger
        self.allocator_settings = self.allocator_settings or other.allocator_settings
        for key, calls in other.calls.items():
            if key in self.calls:
                self.calls[key] += calls
            elif len(self.calls) < 16 * MOST_VALUES:
                self.calls[key] = calls

    def _count(self, values: dict[str, int], value: str, lines: int) -> None:
        if value in values or (len(values) < MOST_VALUES and self.room.take()):
            values[value] = values.get(value, 0) + lines

    def _extend(self, mine: list[T], more: Iterable[T]) -> None:
        """Add what is new: launchers print the last words of a rank again."""
        for one in more:
            if one not in mine and len(mine) < MOST_VALUES and self.room.take():
                mine.append(one)

    def values(self, kind: str) -> Mapping[str, int]:
        """Return the values of a kind of fact, each with how many lines state it."""
        return self.facts.get(kind, {})


def joined(one: RankLog | None, other: RankLog | None) -> RankLog | None:
    """Return what two logs of a rank say together."""
    if one is None or other is None:
        return one or other
    both = RankLog()
    both.add(one)
    both.add(other)
    return both
