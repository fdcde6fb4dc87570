"""The epochs of a run that was started more than once."""

from __future__ import annotations

import msgspec


class EpochRow(msgspec.Struct):
    """An epoch of the run: from a start of the process group to the next. Times since the first."""

    number: int
    is_shown: bool  # the other parts of the diagnosis describe this one
    started: str  # ISO 8601, UTC
    world_size: int
    hosts: list[str]
    restarts: int | None  # starts of the workers before it, as the launcher counts
    start_ns: int
    end_ns: int  # last record of any rank
    first_step_ns: int | None = None  # start of its first step
    last_step_ns: int | None = None  # end of its last one
    steps: int = 0
    first_step: int | None = None  # as training counts over restarts; null: unknown
    last_step: int | None = None
    end: str = ""  # "exited", "crashed", "stuck", "killed", "nodes joined", "new process group"...
    ranks: list[int] = []  # to inspect, by how it ended
    why: str = ""
    gap_ns: int | None = None  # from the last step of an earlier epoch to its first one
    unrecorded: int = 0  # starts right before it that ended before the first collective
    repeated_steps: int | None = None  # taken before by an earlier epoch; null: unknown
    repeated_ns: int = 0


class Epochs(msgspec.Struct):
    """The epochs of a run that was started more than once; empty for other runs."""

    rows: list[EpochRow] = []
    whole_ns: int = 0  # from the first start to the last sign of life
    gap_ns: int = 0
    repeated_ns: int = 0
    lost_share: float = 0.0  # of the whole time: gaps and steps known to be repeated
    unread: int = 0  # earlier epochs
