"""The ranks of a run, and how far their traces can be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

import numpy as np

from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.per_rank import PerRank
from dsprof.analysis.rank.ending import group_end
from dsprof.analysis.rank.last_moments import to_the_end
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.rolling.rollups import SPANS_S
from dsprof.trace.schema import Header, HookStatus, Note, Trailer, is_of_environment
from dsprof.trace.selection import EVERYTHING, Selection
from dsprof.trace.sharing import shared

NOOP_HOOK = "noop_hook"
"""Torch's communication hook for DDP that sends nothing; DDP counts its buckets as reduced."""


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank's own account."""

    path: str
    header: Header
    trailer: Trailer | None
    hooks: tuple[HookStatus, ...]
    notes: dict[str, int]  # how often each was met
    broken_lines: int
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
    hides_collectives: bool  # more ran than are recorded, as far as it shows
    lost_parts: tuple[str, ...]  # of a rolling recording: endings of files that are missing
    newest_ns: int  # of one without steps: how long what is kept lasts; 0 if all of it is kept
    rolled_ns: int  # of a rolling recording: time of all steps, those without details included
    left_missing_ns: int | None  # of one that left its group, then closed no record: what is lost


@dataclass(slots=True)
class _Ends:
    """What ranks have in common, and which of them ended how, ascending."""

    is_world_known: bool = False  # by any
    is_recorded: bool = False
    has_ddp: bool = False
    hides_collectives: bool = False
    is_cpu: bool = True  # all of them
    sampled: list[int] = field(default_factory=list)
    unclean: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    exceptions: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Run(Aggregate):
    """All ranks present, and what is known of the run beside their traces."""

    ranks: PerRank[RankFacts]
    clock_method: str = ""
    clock_bound_ns: int | None = 0
    strangers: tuple[str, ...] = ()
    unread: Mapping[int, str] = field(default_factory=dict)  # of them, by the rank in their names
    selection: Selection = EVERYTHING
    is_running: bool = False  # while it was read
    epoch: int = 1  # of the run, that these ranks are of
    epochs: int = 1  # of the run

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Run:
        facts = RankFacts(
            path=trace.path,
            header=trace.header,
            trailer=trace.trailer,
            hooks=shared(tuple(trace.hooks)),
            notes={_remark(note): note.count for note in trace.notes},
            broken_lines=trace.broken_lines,
            open_collectives=int(np.count_nonzero(trace.collectives.is_open)),
            waits=int(trace.collectives.waits.sum()),
            captured=int(np.count_nonzero(trace.collectives.captured)),
            is_sampled=trace.is_sampled,
            beside=tuple(trace.beside),
            is_foreign=trace.is_foreign,
            is_world_known=trace.is_world_known,
            in_flight=_first_open(to_the_end(trace)),
            unknown_records=trace.unknown_records,
            has_ddp=bool(trace.layouts),
            hides_collectives=_hides_collectives(trace),
            lost_parts=shared(tuple(trace.lost_parts)),
            newest_ns=_newest_ns(trace),
            rolled_ns=_rolled_ns(trace),
            left_missing_ns=left.missing_ns if (left := group_end(trace)) else None,
        )
        return cls(PerRank({trace.rank: facts}))

    def merge(self, other: Run) -> Run:
        return replace(self, ranks=self.ranks | other.ranks)

    @property
    def first(self) -> Header:
        """The header of the lowest rank present."""
        return self.ranks[min(self.ranks)].header

    @property
    def is_world_known(self) -> bool:
        """Whether any file tells how many ranks there were; else there were those present."""
        return self._ends.is_world_known

    @cached_property
    def hosts(self) -> dict[int, str]:
        """The host of each rank present; "" where no file names it."""
        return {rank: facts.header.host for rank, facts in self.ranks.items()}

    @property
    def is_one_host(self) -> bool:
        """Whether all ranks present ran on one host."""
        return len({*self.hosts.values()}) == 1

    @property
    def missing_ranks(self) -> list[int]:
        """Ranks of the world without a trace."""
        present = set(self.ranks)  # a file may claim a million ranks
        return [rank for rank in range(self.first.world_size) if rank not in present]

    @property
    def unread_ranks(self) -> list[int]:
        """Those that were to be read; [] where hosts were chosen: theirs is not known."""
        if self.selection.hosts:
            return []
        return [rank for rank in self.missing_ranks if self.selection.holds_rank(rank)]

    @property
    def skipped_of_unread(self) -> list[str]:
        """Files of `unread_ranks` that were given and could not be read, each with the reason."""
        return [self.unread[rank] for rank in self.unread_ranks if rank in self.unread]

    @property
    def unclean_ranks(self) -> list[int]:
        """Ranks without an end: they were killed, or still run; [] while the run goes on."""
        return [] if self.is_running else self._ends.unclean

    @property
    def left_ranks(self) -> list[int]:
        """Ranks that destroyed their process group, then did not close their record."""
        return [] if self.is_running else self._ends.left

    @property
    def out_of_memory_ranks(self) -> list[int]:
        """Ranks that ended because a request for device memory failed."""
        exceptions = self.exceptions.items()
        return sorted(rank for what, ranks in exceptions if is_of_memory(what) for rank in ranks)

    @property
    def exceptions(self) -> dict[str, list[int]]:
        """Type of an exception that nothing caught -> ranks that it ended."""
        return self._ends.exceptions

    @property
    def is_recorded(self) -> bool:
        """Whether dsprof wrote the files of any rank; other tools count neither drops nor cost."""
        return self._ends.is_recorded

    @property
    def sampled_ranks(self) -> list[int]:
        """Ranks out of whose files events were left by whoever wrote them."""
        return self._ends.sampled

    @property
    def trailers(self) -> Iterator[Trailer]:
        """The trailers that there are."""
        return (facts.trailer for facts in self.ranks.values() if facts.trailer is not None)

    @property
    def is_of_environment(self) -> bool:
        """Whether `dsprof env` wrote all of it: there was no run."""
        return all(is_of_environment(facts.trailer) for facts in self.ranks.values())

    def cost_shares(self, steps: Steps) -> tuple[float, float] | None:
        """Return what recording cost in training threads and in the writer, per time in steps.

        Medians over ranks; None where no rank both ended cleanly and took a step, or where
        only some steps were read or written: the cost is that of all. The cost in training threads
        is an estimate from few samples: that of a single rank is mostly chance.
        """
        if self.selection.steps is not None:
            return None
        shares = []
        for rank, row in steps.ranks.items():
            facts = self.ranks[rank]
            spent_ns, trailer = facts.rolled_ns or row.all_ns, facts.trailer
            if spent_ns and trailer is not None and not trailer.lost_steps:
                shares.append((trailer.hooks_ns / spent_ns, trailer.writer_ns / spent_ns))
        if not shares:
            return None
        hooks, writer = zip(*shares, strict=True)
        return median(hooks), median(writer)

    @property
    def has_ddp(self) -> bool:
        """Whether any rank wrapped a model in DDP."""
        return self._ends.has_ddp

    @property
    def hides_collectives(self) -> bool:
        """Whether collectives of any rank are known to be missing from its trace."""
        return self._ends.hides_collectives

    @property
    def is_cpu(self) -> bool:
        """Whether the run was on CPUs, where the host clock tells all."""
        return self._ends.is_cpu

    @cached_property
    def _ends(self) -> _Ends:
        """What is known of all ranks, in one pass: to unpack each of many takes a while."""
        found = _Ends()
        for rank, facts in self.ranks.items():
            found.is_world_known |= facts.is_world_known
            found.is_recorded |= not facts.is_foreign
            found.has_ddp |= facts.has_ddp
            found.hides_collectives |= facts.hides_collectives
            found.is_cpu &= facts.header.device == "cpu"
            if facts.is_sampled:
                found.sampled.append(rank)
            if facts.left_missing_ns is not None:
                found.left.append(rank)
            elif facts.trailer is None:
                found.unclean.append(rank)
            elif facts.trailer.exception:
                found.exceptions.setdefault(facts.trailer.exception, []).append(rank)
        return found


def _remark(note: Note) -> str:
    """Word a verdict as of its time: the run may have gone on, or have waited longer."""
    is_verdict = note.hang_ranks is not None
    return f"While the run was stuck, dsprof said: {note.text}" if is_verdict else note.text


def _hides_collectives(trace: RankTrace) -> bool:
    """Say so also where DDP counted reductions of which none was seen, as from its C++."""
    rows = trace.collectives
    counted = any(one.buckets_reduced for one in trace.layouts if one.comm_hook != NOOP_HOOK)
    is_blind = counted and not (rows.flush > 0).any()
    has_failed = any(hook.why for hook in trace.hooks)
    return bool(trace.is_sampled or has_failed or is_blind or rows.captured.any())


def _newest_ns(trace: RankTrace) -> int:
    rows = trace.collectives
    has_steps = trace.steps or any(one.steps for one in trace.rollups.values())
    if not (trace.newest_from and len(rows)) or has_steps:
        return 0
    return int(max(rows.issue_ns.max(), rows.done_ns.max()) - rows.issue_ns.min())


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


def is_of_memory(exception: str) -> bool:
    """Say whether an exception is that of a failed request for device memory."""
    return exception in ("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")
