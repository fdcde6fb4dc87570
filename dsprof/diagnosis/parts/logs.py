"""Flight recorder dumps, logs, and calls that other tools timed."""

from __future__ import annotations

import msgspec


class FlightRow(msgspec.Struct):
    """A process group in which collectives were in flight when flight recorders were dumped."""

    group: str
    name: str
    ranks: list[int]
    in_flight: int  # collectives, over the dumped ranks
    p2p_in_flight: int  # sends and receives
    number: int | None  # of the first collective that cannot end
    op: str = ""
    dtype: str = ""
    elements: int | None = None
    waiting: list[int] = []  # have called it
    absent: list[int] = []  # have not
    unfinished: list[int] = []  # have not ended what others have
    without_dump: list[int] = []


class LoggedFact(msgspec.Struct):
    """Something that a library stated in the logs."""

    kind: str  # "network", "path"
    value: str
    ranks: list[int]  # empty for what is said of the job
    lines: int


class LogMarkRow(msgspec.Struct):
    """A warning or error of the only log, and which part of the log is before it."""

    rank: int | None  # None: the line names none
    place: float
    is_error: bool
    text: str


class LoggedCallRow(msgspec.Struct):
    """Calls that another tool timed and wrote into a log; sums over the ranks that wrote.

    Bandwidths are computed from its sizes and times as nccl-tests defines them, not taken over.
    """

    source: str
    op: str
    caller: str
    message_bytes: int  # to the two decimals that it prints
    calls: int
    total_ns: int | None
    mean_ns: float | None
    algbw: float | None
    busbw: float | None  # as if the group were the world: the tool does not know groups
    world_size: int | None = None  # as its bandwidths imply
    straggler_ns: int | None = None
    note: str = ""
