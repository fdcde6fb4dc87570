"""How the record of each rank ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from dsprof.analysis.ending import Ending
from dsprof.analysis.per_rank import PerRank
from dsprof.analysis.rank.ending import ending_of
from dsprof.analysis.summary import Aggregate, RankClock, greatest, joined_by
from dsprof.trace.rank_trace import RankTrace

_STALLED_NS, _STALLED_STEPS = 10_000_000_000, 5


def patience_ns(step_ns: float) -> float:
    """Return after how long a wait is a stall, in a run whose steps take so long."""
    return max(_STALLED_NS, _STALLED_STEPS * step_ns)


@dataclass(frozen=True, slots=True, order=True)
class GroupNames:
    """A process group as all its ranks know it."""

    label: str
    ranks: tuple[int, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Endings(Aggregate):
    """The ranks that dsprof recorded, and their groups by key."""

    ranks: Mapping[int, Ending]
    groups: dict[str, GroupNames] = field(metadata=joined_by(greatest))

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Endings:
        """Read the end of one rank; other tools do not say how theirs came about."""
        if trace.is_foreign:
            return cls(PerRank(), {})
        groups = {g.key: GroupNames(g.label, tuple(g.ranks), g.name) for g in trace.groups.values()}
        ending = ending_of(trace, clock)
        return cls(PerRank({trace.rank: ending}), groups)

    def killed_for_memory(self, rank: int) -> bool:
        """Say whether the kernel killed for memory what ended silently on a rank's host."""
        kills, silent = self._kills_for_memory(rank)
        return 0 < silent <= kills

    def helpers_killed(self, rank: int) -> int:
        """Return how many processes beside the ranks of its host the kernel killed for memory.

        0 where ranks ended silently there: these may be what was killed.
        """
        kills, silent = self._kills_for_memory(rank)
        return 0 if silent else kills

    def _kills_for_memory(self, rank: int) -> tuple[int, int]:
        host = self.ranks[rank].host
        here = [ending for ending in self.ranks.values() if ending.host == host]
        kills = max((end.trailer.oom_kills for end in here if end.trailer), default=0)
        return kills, sum(ending.trailer is None for ending in here)

    def has_followed(self, rank: int) -> bool:
        """Say whether a rank failed because another one had, which may not have been read.

        Where all were read, whoever timed out first may have waited for something else.
        """
        if (ending := self.ranks.get(rank)) is None:
            return False
        return ending.lost == "connection" or (ending.has_lost_others and not self.has_all)

    def host_of(self, ranks: Collection[int]) -> str:
        """Return the host on which all of these several ranks run, and no other; "" if none."""
        host_of = {rank: ending.host for rank, ending in self.ranks.items()}
        hosts = {host for rank, host in host_of.items() if rank in ranks}
        here = {rank for rank, host in host_of.items() if host in hosts}
        is_whole = len(hosts) == 1 and here == {*ranks} and 1 < len(here) < len(host_of)
        return hosts.pop() if is_whole else ""

    @property
    def has_all(self) -> bool:
        """Whether these are all ranks of the run."""
        first = next(iter(self.ranks.values()), None)
        return first is None or len(self.ranks) >= first.world_size

    def is_stalled(self, step_ns: float) -> bool:
        """Say whether a rank did nothing but wait at last, for much longer than steps take."""
        beats = [end.heartbeat for end in self.ranks.values() if end.breaks_off]
        return any(beat and beat.oldest_ns > patience_ns(step_ns) for beat in beats)

    def has_failed(self, step_ns: float) -> bool:
        """Say whether an exception ended a rank, and no other went on for long after it."""
        failed = [end.failed_ns for end in self.ranks.values() if end.failed_ns is not None]
        until_ns = min(failed, default=0) + patience_ns(step_ns)
        is_over = all(e.alive_ns < until_ns for e in self.ranks.values() if e.breaks_off)
        return bool(failed) and is_over
