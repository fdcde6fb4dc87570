"""How the record of one rank ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dsprof.analysis.group_calls import Call, RankFlight
from dsprof.environment.processes import GONE
from dsprof.trace.dumps.hang_dump import Connection
from dsprof.trace.schema import INTERRUPTED, Heartbeat, Trailer

_OF_COMMUNICATION = frozenset(
    {"RuntimeError", "DistError", "DistBackendError", "DistNetworkError", "DistStoreError"}
)
"""Exceptions by which torch.distributed says that communication failed."""


@dataclass(frozen=True, slots=True)
class PairCall:
    """A send or receive that did not end or was not waited for, the n-th with its peer."""

    group: str
    peer: int
    number: int
    call: Call


@dataclass(frozen=True, slots=True)
class Told:
    """What the watchdog said of a hang in the run, and of which ranks."""

    text: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LastCall:
    """The collective that a rank completed last, or called last where a device runs it."""

    op: str
    number: int
    group: str  # label
    step: int
    is_completed: bool


@dataclass(frozen=True, slots=True)
class Symptoms:
    """Symptoms of a process, seen at the moment of a hang or now; empty: not looked at.

    `stack` is of the thread that trains, the innermost call first: `file:line function`.
    `native` are calls in C++ that the innermost one made.
    """

    stack: tuple[str, ...] = ()
    native: tuple[str, ...] = ()
    state: str = ""  # letter of /proc/PID/stat; "X": there is no such process
    waits_in: str = ""  # function of the kernel (wchan)
    holds_interpreter: bool = False  # a C call kept Python from running
    oom_kills: int = 0  # of its cgroup, since the process began
    at_ns: int | None = None  # when it was, on the run's time line; None: now
    is_seen_now: bool = False  # `state` and `waits_in` are of now, whenever the rest was seen
    store_call: str = ""  # in which it waited for the store of torch.distributed
    connections: tuple[Connection, ...] = ()
    lost_store: str = ""  # host and port of that store, if it did not answer

    @property
    def is_alive(self) -> bool:
        """Whether the process is there now."""
        return (self.at_ns is None or self.is_seen_now) and self.state not in ("", GONE)

    def since(self, time_ns: int) -> Symptoms:
        """Return what was seen at a time or later."""
        if self.at_ns is None or self.at_ns >= time_ns:
            return self
        return (
            Symptoms(state=self.state, waits_in=self.waits_in) if self.is_seen_now else Symptoms()
        )


@dataclass(frozen=True, slots=True)
class Ending:
    """One rank; times in ns of the run's time line.

    `is_whole` is false where later calls may be missing: recording was switched off before the
    process ended, a hook failed, events or lines were lost, or calls of a killed rank were counted.
    """

    trailer: Trailer | None
    world_size: int
    backend: str
    step: int  # the last one that ended; -1 without any
    alive_ns: int  # the last sign of life
    heartbeat: Heartbeat | None  # the last one, unless collectives, steps or phases followed it
    is_whole: bool
    is_on_device: bool
    groups: dict[str, RankFlight]
    pairs_open: tuple[PairCall, ...]
    pairs: dict[tuple[str, str, int], int]  # (group, "send" or "recv", peer) -> calls
    last: LastCall | None
    last_frame: str
    bound_ns: int | None  # error of its clock
    has_state: bool  # killed, and known up to that moment by its live state
    symptoms: Symptoms
    failed_ns: int | None  # when an exception ended it
    host: str
    last_pair: PairCall | None = None  # what it called last, if it may wait for that or not
    calls_after_steps: int = 0  # after its last step, of a rank that exited
    after_steps_ns: int = 0  # from the end of that step to the end of the last one of these
    told: Told | None = None  # of the hang in which it ended
    left_ns: int | None = None  # without a trailer: when it destroyed its process group in order
    has_ddp: bool = False  # it wrapped a model in DDP

    @property
    def breaks_off(self) -> bool:
        """Whether it was killed, crashed or still runs, as a member of its process group."""
        return self.trailer is None and self.left_ns is None

    @property
    def hangs_at_end(self) -> bool:
        """Whether no Python ran any more after it had destroyed its process group."""
        look = self.symptoms
        is_later = self.left_ns is not None and (look.at_ns is None or look.at_ns > self.left_ns)
        return is_later and look.holds_interpreter

    @property
    def has_lost_tail(self) -> bool:
        """Whether its last half second may be missing: it was killed, and left no live state."""
        return self.breaks_off and not self.has_state and not self.symptoms.is_alive

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended the process."""
        return self.trailer is not None and self.trailer.reason == INTERRUPTED

    @property
    def lost(self) -> str:
        """How it failed by others: their `connection` was lost, or a call's `timeout` passed.

        Other types of exceptions (of a download, of a data loader) speak of such things, too.
        """
        if self.trailer is None or self.world_size < 2:
            return ""
        name = self.trailer.exception.rpartition(".")[2]
        return self.trailer.lost if name in _OF_COMMUNICATION else ""

    @property
    def has_lost_others(self) -> bool:
        """Whether it failed because a connection was lost, or a call timed out."""
        return bool(self.lost)


def first_failed(failed: Mapping[int, Ending]) -> dict[int, Ending]:
    """Return, of ranks that failed, those that did not only lose others; all if each did."""
    return {r: end for r, end in failed.items() if not end.has_lost_others} or dict(failed)
