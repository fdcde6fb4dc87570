"""The model of a hang: verdicts, and who waits where."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal[
    "never_entered",
    "came_late",
    "died",
    "frozen",
    "network",
    "mismatch",
    "deadlock",
    "slow",
    "none",
    "unknown",
]

CauseKind = Literal[
    "exception",
    "signal",
    "out_of_memory",
    "lock",
    "sleep",
    "interpreter_lock",
    "file_system",
    "data_loader",
    "child_process",
    "exited",
    "stopped",
    "diverged",
    "store",
    "device",
    "unknown",
]

HEALTHY: frozenset[Kind] = frozenset({"none", "unknown", "slow"})
"""Verdicts that name no problem."""


class Cause(msgspec.Struct, frozen=True):
    """Why a rank did not come."""

    kind: CauseKind
    text: str


class Operation(msgspec.Struct, frozen=True):
    """The call that could not end."""

    op: str
    group: str
    seq: int
    step: int | None = None
    bytes: int | None = None
    dtype: str = ""
    call_site: str = ""


class HangVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One problem: `ranks` are those to look at, `waiting` those that they keep waiting.

    `chain` leads from a rank that waits to one of `ranks`, by the calls in which they wait; the
    stacks have the innermost call first. `last_calls` has the call sites of the last collectives
    of ranks without a stack: they may have gone on from there. `native` are the calls in C++ that
    the innermost call of a stack made.
    """

    kind: Kind
    ranks: tuple[int, ...] = ()
    mismatch: str | None = None
    operation: Operation | None = None
    waiting: tuple[int, ...] = ()
    waited_ns: int | None = None
    cause: Cause = Cause("unknown", "")
    remedy: str = ""  # what to do; "": the verdict does not say
    stacks: dict[str, tuple[str, ...]] = {}
    native: dict[str, tuple[str, ...]] = {}
    last_calls: dict[str, str] = {}
    chain: tuple[tuple[int, int, str], ...] = ()
    confidence: Literal["high", "medium", "low"] = "low"
    sentence: str = ""
    is_of_device: bool = False  # the program went on, the device did not

    @property
    def where(self) -> dict[str, tuple[str, ...]]:
        """Where ranks are, in lines; without a stack, that it is unknown."""
        unknown = "unknown; last collective called at"
        known = {rank: (*self.native.get(rank, ()), *calls) for rank, calls in self.stacks.items()}
        return {rank: (f"{unknown} {at}",) for rank, at in self.last_calls.items()} | known

    @property
    def is_healthy(self) -> bool:
        """Whether it names no problem: a suspect of unknown state is one."""
        return self.kind in HEALTHY and not (self.kind == "unknown" and self.operation)


class GroupWaits(msgspec.Struct, frozen=True, kw_only=True):
    """The first call of a process group that cannot end, and where its ranks are."""

    group: str
    name: str
    ranks: tuple[int, ...]
    op: str = ""
    number: int | None = None
    bytes: int | None = None
    waited_ns: int | None = None
    waiting: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    different: tuple[int, ...] = ()  # called something else as the same collective
    unfinished: tuple[int, ...] = ()  # their device has not ended what that of others has
    unknown: tuple[int, ...] = ()  # no usable record
    called_from: str = ""


class HangReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of `dsprof hang`: the root first, the earliest wait first."""

    schema_version: int = 1
    verdicts: list[HangVerdict] = []
    groups: list[GroupWaits] = []

    @property
    def is_healthy(self) -> bool:
        """Whether no hang and no crash is known."""
        return all(verdict.is_healthy for verdict in self.verdicts)
