"""What is known of a step of a rolling recording, until its details leave the tails."""

from __future__ import annotations

from dataclasses import dataclass, field

from dsprof.trace.rolling.step_sums import add_sums, end_step, nothing_yet, take_memory
from dsprof.trace.rolling.tails import Extent
from dsprof.trace.schema import MemorySample, Step, StepTotals


@dataclass(slots=True)
class StepDetails:
    """Where its lines are, and their sums."""

    extents: list[Extent] = field(default_factory=list)
    is_cut: bool = False  # no longer whole
    step: Step | None = None
    sums: StepTotals = field(default_factory=nothing_yet)
    by_time: StepTotals = field(default_factory=nothing_yet)  # of these, in spans without steps

    def add(self, extent: Extent) -> None:
        """Know where lines are; neighbours become one."""
        if self.is_cut:
            return
        last = self.extents[-1] if self.extents else None
        if last and (last.segment, last.end) == (extent.segment, extent.start):
            self.extents[-1] = last._replace(end=extent.end)
        else:
            self.extents.append(extent)

    def forget(self, oldest: int) -> None:
        """Give up a step of which lines are in segments before `oldest`."""
        if any(extent.segment < oldest for extent in self.extents):
            self.extents.clear()
            self.is_cut = True

    def end(self, step: Step, memory: MemorySample) -> None:
        """Take the end of the step."""
        self.step = step
        add_sums(self.sums, self.by_time)
        end_step(self.sums, step)
        take_memory(self.sums, memory)

    def take_sums(self) -> StepTotals:
        """Return the sums since the last call of a step that has not ended."""
        sums, self.sums = self.sums, nothing_yet()
        add_sums(self.by_time, sums)
        return sums
