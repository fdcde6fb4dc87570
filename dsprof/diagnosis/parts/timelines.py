"""Steps in detail."""

from __future__ import annotations

import msgspec


class Bar(msgspec.Struct):
    """One rectangle of a timeline."""

    rank: int
    lane: str  # "activity", "phase", "communication", "copies", "stream" or "group" and its name
    kind: str  # op or phase name
    start_ns: int  # from the start of the step
    end_ns: int
    label: str = ""
    group: str = ""  # of ranks; "": not recorded
    module: str = ""  # on whose behalf

    @property
    def is_communication(self) -> bool:
        """Whether it is a collective, a send or a recv."""
        return self.lane == "communication" or self.lane.startswith("group ")


class Timeline(msgspec.Struct):
    """One step in detail."""

    step: int
    why: str  # "worst", "median", "first", "named" (by a finding), "sample" or "chosen"; or, in
    # place of a step, "recording" or "dump" (of a flight recorder)
    duration_ns: int
    bars: list[Bar] = []
    left_out: int = 0  # bars merged or dropped to keep the figure light


class TimelinePlace(msgspec.Struct):
    """Where a finding shows in the timelines."""

    finding: int  # its place among the findings
    step: int
    operation: str = ""  # kind of the bars that it is about; "": not one in particular
    ranks: list[int] = []  # []: all
