"""Reads the other epochs of a run, and says what passed between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import NamedTuple

from dsprof.analysis import epoch_cache
from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.epochs import FAILED, End, Epoch, Epochs
from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.engine import Engine
from dsprof.analysis.hang.verdict import verdicts
from dsprof.analysis.summarise import summarise
from dsprof.analysis.summary import RunSummary
from dsprof.errors import TraceError
from dsprof.findings.wording import broken_off, capitalised
from dsprof.trace.run import RunFiles
from dsprof.trace.schema import BECAME, NEW_GROUP

MOST_READ = 32
"""Only this many epochs are read, the last: a job that crashes at its start may have thousands."""

_FINISHED = ("exited", "new process group")
_CLOCK_ERROR_NS = 60 * 10**9
"""Wall clocks of hosts differ by less; beyond, one was set back between two epochs."""
_LONGEST_STOP_NS = 60 * 10**9
"""torchrun kills workers that have not ended 30 s after it asked them to."""
_KINDS = (Run, Endings, FlightRecorders, Epochs)


def with_epochs(summary: RunSummary, run: RunFiles, engine: Engine) -> RunSummary:
    """Put the epochs of a run into the summary of the one that is analysed."""
    if not run.epochs:
        return summary
    unread = max(len(run.epochs) - MOST_READ, 0)
    found = []
    for number, files in enumerate(run.epochs[unread:], unread + 1):
        is_whole = number == run.epoch and run.selection.steps is None
        epoch = _epoch(number, summary) if is_whole else _read(number, files, engine)
        found += [] if epoch is None else [epoch]
    each = tuple(_linked([*_with_growth(found)], unread))
    return summary.with_part(replace(summary[Epochs], each=each, unread=unread))


def _read(number: int, files: RunFiles, engine: Engine) -> Epoch | None:
    if not files.files:  # none of its ranks is to be read
        return None
    if (known := epoch_cache.load(number, files)) is not None:
        return known
    try:
        epoch = _epoch(number, summarise(files, _KINDS, engine=engine))
    except TraceError:  # none of its files can be read any more
        return None
    epoch_cache.store(epoch, files)
    return epoch


def _epoch(number: int, summary: RunSummary) -> Epoch:
    run, ending = summary[Run], _ending(summary)
    headers = {rank: facts.header for rank, facts in sorted(run.ranks.items())}
    hosts = {rank: header.host for rank, header in headers.items()}
    return Epoch(
        number=number,
        world_size=run.first.world_size,
        hosts=tuple(dict.fromkeys(hosts.values())),
        restarts=run.first.restarts,
        agents={
            key: header.restarts
            for header in headers.values()
            for key in header.job_keys
            if key.startswith("agent ")
        },
        span=summary[Epochs].span,
        end=ending.end,
        has_failed=ending.has_failed,
        ranks=ending.ranks,
        where=frozenset(hosts[rank] for rank in ending.ranks if rank in hosts),
        why=ending.why,
    )


class _Ending(NamedTuple):
    end: End
    ranks: tuple[int, ...] = ()
    why: str = ""
    has_failed: bool = False


def _ending(summary: RunSummary) -> _Ending:
    """Say how an epoch ended, by the verdict on it."""
    endings = summary[Endings]
    reasons = {end.trailer.reason for end in endings.ranks.values() if end.trailer}
    if any(reason.startswith((BECAME, NEW_GROUP)) for reason in reasons):
        lost = tuple(summary[Run].unclean_ranks)  # the others go on without them
        if not lost:
            return _Ending("new process group")
        why = f"{capitalised(broken_off(lost))}; other ranks created a new process group."
        return _Ending("crashed", lost, why, has_failed=True)
    if any(end.is_interrupted for end in endings.ranks.values()):
        return _Ending("interrupted")
    first = verdicts(endings, summary[FlightRecorders])[0]
    if not first.is_healthy:
        end: End = "crashed" if first.kind == "died" else "stuck"
        is_long = (first.waited_ns or 0) > _LONGEST_STOP_NS
        raised = [one for one in endings.ranks.values() if one.trailer and one.trailer.exception]
        has_failed = is_long or not all(one.has_lost_others for one in raised)
        if not summary[Run].selection.has_all_ranks:  # another rank may be the cause
            is_lost = any(one.lost == "connection" for one in endings.ranks.values())
            return _Ending("crashed" if is_lost else end, has_failed=has_failed)
        repeats = first.kind == "died" and first.cause.text
        why = first.cause.text if repeats else f"{first.sentence} {first.cause.text}".strip()
        return _Ending(end, first.ranks, why, has_failed)
    return _Ending("killed" if summary[Run].unclean_ranks else "exited")


def _with_growth(epochs: Sequence[Epoch]) -> Iterable[Epoch]:
    """Say which epochs agents of torchrun ended because nodes joined: they count no restart."""
    for epoch, after in zip_longest(epochs, epochs[1:]):
        if after and not epoch.has_failed and epoch.end in FAILED and _has_grown(epoch, after):
            epoch = replace(epoch, end="nodes joined", ranks=(), where=frozenset(), why="")
        yield epoch


def _has_grown(epoch: Epoch, after: Epoch) -> bool:
    """Say whether the same agents, and more, went on, and none of them counted a restart."""
    if after.world_size <= epoch.world_size or min(epoch.agents.values(), default=-1) < 0:
        return False
    return epoch.agents.items() <= after.agents.items()


def _linked(epochs: Sequence[Epoch], starts: int) -> Iterable[Epoch]:
    """Say of each epoch what time passed before it, and which steps it takes again.

    `starts` is how many epochs came before the first one.
    """
    last_ns: int | None = None
    furthest: int | None = -1  # step of training; None: steps without a number came before
    end = ""
    for epoch in epochs:
        span, gap_ns, repeated = epoch.span, None, None
        if span.steps_ns:
            gap_ns = _gap(last_ns, span.steps_ns[0])
            last_ns = span.steps_ns[1]
        first, last = span.trained or (-1, -1)
        if first == 0 and end in _FINISHED:
            furthest = last  # another training begins
        elif span.trained and furthest is not None:
            repeated = max(min(furthest, last) - first + 1, 0)
            furthest = max(furthest, last)
        elif span.steps:
            furthest = None
        end = epoch.end
        before = epoch.restarts if epoch.restarts >= 0 else starts  # Slurm tells no first start
        unrecorded, starts = max(before - starts, 0), before + 1
        yield replace(epoch, gap_ns=gap_ns, unrecorded=unrecorded, repeated=repeated)


def _gap(end_ns: int | None, start_ns: int) -> int | None:
    """Return the time from a last step to the next first one; None if it is unknown."""
    if end_ns is None:
        return 0
    gap_ns = start_ns - end_ns
    return max(gap_ns, 0) if gap_ns > -_CLOCK_ERROR_NS else None
