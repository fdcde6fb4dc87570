"""A hang as NCCL's RAS shows it: RAS counts calls, and knows neither call sites nor causes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dsprof.analysis.hang.model import Cause, HangVerdict, Operation
from dsprof.findings.wording import capitalised, named, plural
from dsprof.trace.dumps.nccl_ras import Communicator, Count


def ras_verdicts(found: Iterable[Communicator]) -> Iterator[HangVerdict]:
    """Yield a verdict for each communicator whose ranks differ, or do not answer."""
    for one in found:
        if one.missing:
            yield _missing(one)
        if one.behind:
            yield _behind(one, one.behind)


def _missing(one: Communicator) -> HangVerdict:
    ranks = tuple(sorted(one.missing))
    return HangVerdict(
        kind="unknown",
        ranks=ranks,
        operation=Operation("", f"communicator {one.name}", 0),
        cause=Cause(
            "unknown",
            "RAS runs in a thread of its own: a process that does not answer died, is stopped, or "
            "cannot be reached.",
        ),
        confidence="medium",
        sentence=f"{capitalised(named(ranks))} of communicator {one.name} did not answer RAS.",
    )


def _behind(one: Communicator, behind: Count) -> HangVerdict:
    ahead = [count for count in one.counts if count is not behind]
    op, most = one.op or "collective", max(count.operations for count in ahead)
    ranks = tuple(sorted(behind.named))
    who = named(ranks) if ranks else plural(behind.ranks, "rank")
    waiting = tuple(sorted(rank for count in ahead for rank in count.named))
    are = "is" if behind.ranks == 1 else "are"
    return HangVerdict(
        kind="never_entered",
        ranks=ranks,
        operation=Operation(op, f"communicator {one.name}", behind.operations + 1),
        waiting=waiting,
        cause=Cause("unknown", "RAS counts calls and does not say why a rank is behind."),
        confidence="medium" if ranks else "low",
        sentence=f"{capitalised(who)} of communicator {one.name} {are} behind: "
        f"{behind.operations:,} of {most:,} {op} calls.",
    )
