"""Which steps of a run are recorded in full."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """Which steps are recorded in full; of the others only counters are kept."""

    start_step: int = 0
    steps: int | None = None
    every: int = 1

    def holds(self, step: int) -> bool:
        """Tell whether `step` is recorded in full; what lies outside all steps is."""
        if step < 0:
            return True
        since = step - self.start_step
        inside = since >= 0 and (self.steps is None or since < self.steps)
        return inside and since % self.every == 0


EVERYTHING = Window()
