"""The ranks of a run, and how far their traces can be trusted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

import numpy as np

from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.per_rank import PerRank
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.rolling.rollups import SPANS_S
from dsprof.trace.schema import Header, HookStatus, Trailer
from dsprof.trace.selection import EVERYTHING, Selection
from dsprof.trace.sharing import shared


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank's own account."""

    path: str
    header: Header
    trailer: Trailer | None
    hooks: tuple[HookStatus, ...]
    notes: dict[str, int]  # how often each was met
    broken_lines: int
    collectives: int
    counted: int  # collectives that are only in counters
    open_collectives: int
    waits: int
    captured: int  # collectives that went into graphs of a device
    is_sampled: bool  # events were left out of the file
    beside: tuple[str, ...]  # further files read of this rank
    is_foreign: bool  # another tool wrote the file
    is_world_known: bool  # its files tell how many ranks there were
    in_flight: str  # the first of the open collectives, in words
    unknown_records: int  # of kinds that only a newer dsprof knows
    has_ddp: bool  # a model was wrapped in DDP
    rolled_ns: int  # of a rolling recording: time of all steps, those without details included


@dataclass(frozen=True)
class Run(Aggregate):
    """All ranks present, and what is known of the run beside their traces."""

    ranks: PerRank[RankFacts]
    clock_method: str = ""
    clock_bound_ns: int | None = 0
    strangers: tuple[str, ...] = ()
    selection: Selection = EVERYTHING
    is_running: bool = False  # while it was read
    epoch: int = 1  # of the run, that these ranks are of
    epochs: int = 1  # of the run

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Run:
        """Read header, trailer and counts of one rank."""
        facts = RankFacts(
            path=trace.path,
            header=trace.header,
            trailer=trace.trailer,
            hooks=shared(tuple(trace.hooks)),
            notes={note.text: note.count for note in trace.notes},
            broken_lines=trace.broken_lines,
            collectives=len(trace.collectives),
            counted=sum(row.calls for counter in trace.counters for row in counter.rows),
            open_collectives=int(np.count_nonzero(trace.collectives.is_open)),
            waits=int(trace.collectives.waits.sum()),
            captured=int(np.count_nonzero(trace.collectives.captured)),
            is_sampled=trace.is_sampled,
            beside=tuple(trace.beside),
            is_foreign=trace.is_foreign,
            is_world_known=trace.is_world_known,
            in_flight=_first_open(trace),
            unknown_records=trace.unknown_records,
            has_ddp=bool(trace.layouts),
            rolled_ns=_rolled_ns(trace),
        )
        return cls(PerRank({trace.rank: facts}))

    def merge(self, other: Run) -> Run:
        """Put the ranks side by side."""
        return replace(self, ranks=self.ranks | other.ranks)

    @property
    def first(self) -> Header:
        """The header of the lowest rank present."""
        return self.ranks[min(self.ranks)].header

    @cached_property
    def is_world_known(self) -> bool:
        """Whether any file tells how many ranks there were; else there were those present."""
        return any(facts.is_world_known for facts in self.ranks.values())

    @property
    def missing_ranks(self) -> list[int]:
        """Ranks of the world without a trace."""
        return [rank for rank in range(self.first.world_size) if rank not in self.ranks]

    @cached_property
    def unclean_ranks(self) -> list[int]:
        """Ranks without a trailer: they were killed, or still run; [] while the run goes on."""
        if self.is_running:
            return []
        return sorted(rank for rank, facts in self.ranks.items() if facts.trailer is None)

    @cached_property
    def exceptions(self) -> dict[str, list[int]]:
        """Type of an exception that nothing caught -> ranks that it ended."""
        found: dict[str, list[int]] = {}
        for rank, facts in self.ranks.items():
            if facts.trailer is not None and facts.trailer.exception:
                found.setdefault(facts.trailer.exception, []).append(rank)
        return found

    @cached_property
    def is_recorded(self) -> bool:
        """Whether dsprof wrote the files of any rank; other tools count neither drops nor cost."""
        return not all(facts.is_foreign for facts in self.ranks.values())

    @cached_property
    def sampled_ranks(self) -> list[int]:
        """Ranks out of whose files events were left by whoever wrote them."""
        return sorted(rank for rank, facts in self.ranks.items() if facts.is_sampled)

    @property
    def trailers(self) -> list[Trailer]:
        """The trailers that there are."""
        return [facts.trailer for facts in self.ranks.values() if facts.trailer is not None]

    def cost_shares(self, steps: Steps) -> tuple[float, float] | None:
        """Return what recording cost in training threads and in the writer, per time in steps.

        Medians over ranks; None where no rank both ended cleanly and took a step, or where
        only some steps were read or written: the cost is that of all. The cost in training threads
        is an estimate from few samples: that of a single rank is mostly chance.
        """
        if self.selection.steps is not None:
            return None
        spent = {
            rank: self.ranks[rank].rolled_ns or row.all_ns for rank, row in steps.ranks.items()
        }
        ended = {rank: facts.trailer for rank, facts in self.ranks.items() if spent.get(rank)}
        shares = [
            (trailer.hooks_ns / spent[rank], trailer.writer_ns / spent[rank])
            for rank, trailer in ended.items()
            if trailer is not None and not trailer.lost_steps
        ]
        if not shares:
            return None
        hooks, writer = zip(*shares, strict=True)
        return median(hooks), median(writer)

    @cached_property
    def has_ddp(self) -> bool:
        """Whether any rank wrapped a model in DDP."""
        return any(facts.has_ddp for facts in self.ranks.values())

    @cached_property
    def is_cpu(self) -> bool:
        """Whether the run was on CPUs, where the host clock tells all."""
        return all(facts.header.device == "cpu" for facts in self.ranks.values())


def _rolled_ns(trace: RankTrace) -> int:
    spans = trace.rollups.items()
    return sum(one.total_ns for (length_s, _), one in spans if length_s == SPANS_S[-1])


def _first_open(trace: RankTrace) -> str:
    """Name the open collective that was issued first; "" if there is none."""
    rows = trace.collectives
    still = np.flatnonzero(rows.is_open & rows.on_wire)
    if not len(still):
        return ""
    first = still[np.argmin(rows.issue_ns[still])]
    group = trace.groups.get(int(rows.group[first]))
    of = f" of {group.label}" if group is not None else ""
    return f"{rows.words[rows.op[first]]} {int(rows.seq[first]):,}{of}"


AGGREGATE = Run
