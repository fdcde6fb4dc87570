"""Reports of libraries in the logs of each rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dsprof.analysis.rank_sets import RankSet
from dsprof.analysis.summary import Aggregate, RankClock, summed
from dsprof.trace.lost_peers import lost
from dsprof.trace.rank_log import (
    EXCEPTION,
    FROM_OUTSIDE,
    NOT_OF_NCCL,
    TRACEBACK,
    CallKind,
    LoggedCalls,
    OutOfMemory,
    RankLog,
    failure_text,
)
from dsprof.trace.rank_trace import RankTrace

_CONSEQUENCE = re.compile(
    r"(?:[\w.]*\.)?(?:Dist|KeyboardInterrupt"
    r"|RuntimeError: (?:NCCL|DataLoader worker .{1,40} by signal: (?:Terminated|Hangup|Interrupt)))"
)
"""What ranks raise because another process ended, or the user ended them."""


@dataclass(frozen=True, slots=True)
class Logs(Aggregate):
    """The logs by rank; ranks without one are not in here."""

    ranks: Mapping[int, RankLog] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)  # of the ranks that name theirs

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Logs:
        if trace.log is None:
            return cls()
        host = trace.log.host or trace.header.host
        return cls({trace.rank: trace.log}, {trace.rank: host} if host else {})

    @property
    def is_nccl(self) -> bool:
        """Whether NCCL or RCCL itself speaks in one of the logs."""
        return any(log.facts.keys() - NOT_OF_NCCL or log.variables for log in self.ranks.values())

    @property
    def has_several_hosts(self) -> bool:
        """Whether ranks are on more than one host, as far as the logs tell."""
        if len(set(self.hosts.values())) > 1:
            return True
        shapes = self.values("hosts of a communicator")
        return any(not shape.startswith("1 of") for shape in shapes)

    def values(self, kind: str) -> dict[str, RankSet]:
        """Return the values of a kind of fact, each with the ranks that state it."""
        found: dict[str, RankSet] = {}
        for rank, log in self.ranks.items():
            for value in log.values(kind):
                found[value] = found.get(value, 0) | 1 << rank
        return found

    def raised(self) -> dict[str, RankSet]:
        """Return the exceptions that ended ranks, without those that the end of others caused."""
        every = self.values(EXCEPTION)
        return {what: ranks for what, ranks in every.items() if not _has_followed(what)}

    def first_raised(self) -> list[str]:
        """Return what ended processes of unknown rank, without what the end of others caused."""
        return [what for what in self.values(TRACEBACK) if not _has_followed(what)]

    def followed(self) -> dict[str, RankSet]:
        """Return the exceptions of ranks that lost another one, or waited for it in vain."""
        every = self.values(EXCEPTION)
        return {
            what: ranks
            for what, ranks in every.items()
            if _has_followed(what) and "KeyboardInterrupt" not in what
        }

    @property
    def is_job_over(self) -> bool:
        """Whether Slurm says that it ended the job, and not to start it again."""
        return not {"time limit", "cancelled"}.isdisjoint(self.values(FROM_OUTSIDE))

    def facts(self) -> dict[tuple[str, str], tuple[RankSet, int]]:
        """Return all facts by kind and value, each with its ranks and lines."""
        found: dict[tuple[str, str], tuple[RankSet, int]] = {}
        for rank, log in self.ranks.items():
            for kind, values in log.facts.items():
                for value, lines in values.items():
                    ranks, before = found.get((kind, value), (0, 0))
                    found[kind, value] = ranks | 1 << rank, before + lines
        return found

    def warnings(self) -> dict[str, tuple[RankSet, int]]:
        """Return warnings and errors, each with its ranks, as far as known, and lines."""
        found: dict[str, tuple[RankSet, int]] = {}
        for rank, log in self.ranks.items():
            for text, lines in log.warnings.items():
                ranks, before = found.get(text, (0, 0))
                found[text] = ranks | (not log.is_stray(text)) << rank, before + lines
        return found

    def failed_requests(self) -> Iterator[tuple[int, OutOfMemory]]:
        """Return what the devices of ranks had no memory for; rank -1 where no line names it."""
        known = {one for log in self.ranks.values() for one in log.failures()}
        for rank, log in sorted(self.ranks.items()):
            for one in log.out_of_memory:
                if not log.is_stray(one):
                    yield rank, one
                elif failure_text(one) not in known:
                    yield -1, one

    def calls(self) -> dict[CallKind, LoggedCalls]:
        """Return what DeepSpeed's comms_logger told, added up over the ranks that told it."""
        return summed(told for log in self.ranks.values() for told in log.calls.items())


def _has_followed(what: str) -> bool:
    return bool(_CONSEQUENCE.match(what) or lost(what))
