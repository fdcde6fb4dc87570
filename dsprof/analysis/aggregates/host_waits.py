"""How often, and how long, the host stopped to wait for a device that had communication to do."""

from __future__ import annotations

from dataclasses import dataclass

from dsprof.analysis.steps import detailed_steps
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.table import RankTrace


@dataclass(frozen=True, slots=True)
class HostWaits(Aggregate):
    """Sums over ranks and measured steps; only a device that is timed shows them."""

    calls: int = 0
    rank_steps: int = 0  # of ranks whose device is timed
    idle_ns: int = 0  # the current stream had nothing to do meanwhile

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> HostWaits:
        """Count the synchronising calls of one rank."""
        if not trace.is_device_timed:
            return cls()
        steps = detailed_steps(trace)
        wanted = set(steps.tolist())
        waits = [s for s in trace.stalls if s.kind == "synchronize" and s.step in wanted]
        return cls(len(waits), len(steps), sum(stall.duration_ns for stall in waits))

    def merge(self, other: HostWaits) -> HostWaits:
        """Add up two sets of ranks."""
        return HostWaits(
            self.calls + other.calls,
            self.rank_steps + other.rank_steps,
            self.idle_ns + other.idle_ns,
        )

    @property
    def calls_per_step(self) -> float:
        """Calls of one rank and step."""
        return self.calls / self.rank_steps if self.rank_steps else 0.0

    @property
    def idle_ms_per_step(self) -> float:
        """Mean over ranks and steps."""
        return self.idle_ns / self.rank_steps / 1e6 if self.rank_steps else 0.0
