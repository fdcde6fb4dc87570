"""A hang as NCCL's RAS shows it: RAS counts calls, and knows neither call sites nor causes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dsprof.analysis.hang.model import Cause, HangVerdict, Operation
from dsprof.findings.wording import capitalised, named, plural, some
from dsprof.trace.dumps.nccl_ras import Communicator, Count, Failure

_AGAIN = "Query RAS again: if the counts have grown, the job is not stuck."
_NAMED = 4
_SILENT = Cause(
    "unknown",
    "RAS runs in a thread of its own: a process that does not answer died, is stopped, or cannot "
    "be reached.",
)
_NO_DIFFERENCE = HangVerdict(
    kind="none",
    sentence="RAS lists no communicator whose ranks differ in their calls, failed, or are silent.",
)


def ras_verdicts(found: Iterable[Communicator]) -> Iterator[HangVerdict]:
    """Yield a verdict for each communicator that has problems; one that says so if none has."""
    communicators = [*found]
    if not communicators:
        yield _NO_DIFFERENCE
    for one in communicators:
        for failure in one.failures:
            yield _failed(one, failure)
        if one.silent:
            yield _missing(one) if one.name else _lost(one)
        if one.behind:
            yield _behind(one, one.behind)


def _failed(one: Communicator, failure: Failure) -> HangVerdict:
    ranks = tuple(sorted(failure.named))
    who = _who(ranks, failure.ranks)
    reports = "reports" if failure.ranks == 1 else "report"
    return HangVerdict(
        kind="unknown",
        ranks=ranks,
        operation=Operation("", f"communicator {one.name}", 0),
        cause=Cause(
            "unknown", "NCCL gave up on the communicator. With NCCL_DEBUG=WARN it logs why."
        ),
        remedy=_look_at(one, ranks),
        confidence="medium",
        sentence=f"{who} of communicator {one.name} {reports} an error of NCCL: {failure.what}.",
    )


def _missing(one: Communicator) -> HangVerdict:
    ranks = tuple(sorted(one.missing))
    return HangVerdict(
        kind="unknown",
        ranks=ranks,
        operation=Operation("", f"communicator {one.name}", 0),
        cause=_SILENT,
        remedy=_look_at(one, ranks),
        confidence="medium",
        sentence=f"{_who(ranks, one.silent)} of communicator {one.name} did not answer RAS.",
    )


def _lost(job: Communicator) -> HangVerdict:
    known = [f"process {pid} on {host}" for pid, host in job.processes.values()]
    which = f": {some(known, _NAMED)}" if known else ""
    return HangVerdict(
        kind="unknown",
        operation=Operation("", "job", 0),
        cause=_SILENT,
        remedy=f"Look at the log and the exit code of {known[0]}." if known else "",
        confidence="medium",
        sentence=f"{plural(job.silent, 'process', 'processes')} did not answer RAS{which}.",
    )


def _behind(one: Communicator, behind: Count) -> HangVerdict:
    ahead = [count for count in one.counts if count is not behind]
    op, most = one.op or "collective", max(count.operations for count in ahead)
    ranks = tuple(sorted(behind.named))
    waiting = tuple(sorted(rank for count in ahead for rank in count.named))
    are = "is" if behind.ranks == 1 else "are"
    return HangVerdict(
        kind="never_entered",
        ranks=ranks,
        operation=Operation(op, f"communicator {one.name}", behind.operations + 1),
        waiting=waiting,
        cause=Cause("unknown", "RAS counts calls and does not say why a rank is behind."),
        remedy=f"{_AGAIN} {_look_at(one, ranks)}".strip(),
        confidence="medium" if ranks else "low",
        sentence=f"{_who(ranks, behind.ranks)} of communicator {one.name} {are} behind: "
        f"{behind.operations:,} of {most:,} {op} calls.",
    )


def _who(ranks: Sequence[int], count: int) -> str:
    """Begin a sentence on ranks that RAS names, or only counts."""
    return capitalised(named(ranks)) if ranks else plural(count, "rank")


def _look_at(one: Communicator, ranks: Sequence[int]) -> str:
    """Say where to look at the first rank whose process is known; "" if none is."""
    for rank in ranks:
        if rank in one.processes:
            pid, host = one.processes[rank]
            return (
                f"Look at the log of rank {rank} of the communicator, process {pid} on {host}, and "
                f"print its stack: `py-spy dump --pid {pid}`."
            )
    return ""
