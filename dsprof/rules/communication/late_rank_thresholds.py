"""When a rank is called late, in recorded runs and in profiles."""

from __future__ import annotations

from dataclasses import dataclass

from dsprof.analysis.run.lateness import CHANCE, LEAST_S, STEP_SHARE
from dsprof.findings.finding import Severity


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a rank is called late."""

    communication_ratio: float = 0.6  # of a profile: its time in collectives / that of any other
    waited_share: float = 0.02  # of a profile's measured steps: what the others wait for it
    severe_share: float = 0.3
    cause_share: float = 0.6  # of the lateness, that one part of a rank's own time must explain
    step_share: float = STEP_SHARE  # of the step: what the others wait for it, in a trace of dsprof
    turns_share: float = 0.25  # of the step: waits for ranks that take turns are worth a remark
    chance: float = CHANCE  # of so many votes for one rank if all were alike
    seconds: float = LEAST_S  # of measured steps together: programs beside hold a processor so long
    medium_share: float = 0.1

    def severity(self, share: float) -> Severity:
        """Return how severe it is that the others wait for so much of a step."""
        if share >= self.severe_share:
            return Severity.HIGH
        return Severity.MEDIUM if share >= self.medium_share else Severity.LOW
