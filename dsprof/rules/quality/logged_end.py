"""How a run failed or was ended, as its logs say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from dsprof.analysis.aggregates.logs import Logs
from dsprof.analysis.ending import Ending
from dsprof.analysis.rank_sets import RankSet, in_several, named_ranks, ranks_of, union
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Finding, Severity, Status, Table
from dsprof.findings.wording import broken_off, named
from dsprof.rules.evidence.endings import after_step, completed_last, evidence_of
from dsprof.rules.evidence.raised import RUN_FAILED, messages, remedy, who_failed
from dsprof.rules.rule import RuleMeta
from dsprof.trace.rank_log import (
    FAILED_FIRST,
    FROM_OUTSIDE,
    HOST_MEMORY,
    LAUNCHER,
    OF_RAY,
    RAY_MEMORY,
)

_OF_CAUSE = re.compile("^NCCL error|store based barrier|ncclUniqueId|clients joined|socket has ")
"""In errors of communication that name more than a launcher does."""
_SIGNAL, _EXIT_CODE = "signal ", "exit code "
_WITHOUT_TRACEBACK = {
    "signal SIGKILL": "Check the memory of {host}: `dmesg`",
    "signal SIGBUS": "Check the space in /dev/shm on {host}",
    "signal SIGTERM": "Find out who ended it: the scheduler (preemption, a limit), or a user",
    OF_RAY: "Read its log in /tmp/ray/session_latest/logs, and `dmesg`",
    RAY_MEMORY: "Give it more memory, or lower `num_workers` of data loaders",
}
"""What to do where a process left no traceback."""
ENDED_BY_SLURM = {
    "time limit": (
        "The job reached its time limit",
        "Request more time with `--time`, or save a checkpoint before the limit",
    ),
    "cancelled": ("The job was cancelled", "Ask who called `scancel` if you did not"),
    "preemption": ("Another job preempted this one", "Save checkpoints; submit with `--requeue`"),
    "node failure": ("A node failed", "Leave it out with `--exclude`, and report it"),
}
ENDED_BY_SIGNAL = {
    "SIGTERM": (
        "SIGTERM ended torchrun and its ranks",
        "Find out who sent it: the scheduler, or a user",
    ),
    "SIGHUP": ("The terminal of torchrun closed", "Start it with nohup, or in tmux"),
}
_ENDED = ENDED_BY_SLURM | ENDED_BY_SIGNAL
TOO_MUCH_HOST_MEMORY = (
    "A process took more host memory than Slurm granted",
    "Request more with `--mem`, or lower `num_workers` of data loaders",
)


class LoggedEnd(NamedTuple):
    """The end of a run, as its logs say."""

    meta: RuleMeta
    run: RunSummary

    def without_records(self) -> Iterable[Finding]:
        """Report how a run failed of which only logs tell."""
        logs = self.run[Logs]
        if is_explained(logs):
            return
        raised = logs.raised()
        failed = {} if _has_nccl_error(logs) else logs.values(LAUNCHER)
        if first := logs.values(FAILED_FIRST):
            yield self.failed_first(first, (), {}, raised)
        elif HOST_MEMORY in failed:
            yield self.failed(*TOO_MUCH_HOST_MEMORY)
        elif raised:
            ranks, which = ranks_of(union(raised.values())), "first traceback"
            if len(ranks) == 1 and len(raised) == 1:
                which = f"traceback of {named(ranks)}"
            fix, problem = f"Find the {which} in the log", f"{who_failed({}, raised)} failed"
            yield self.failed(problem, fix, ranks, raised=raised)
        elif failed:
            # What a signal ends raises nothing.
            has_raised = all(how.startswith(_EXIT_CODE) for how in failed)
            first = dict.fromkeys(logs.first_raised() if has_raised else [], 0)
            kinds = [what.partition(":")[0].rpartition(".")[2] for what in first]
            problem = f"A process of the run failed: {', '.join(kinds or failed)}"
            fix = _without_traceback(failed, "its host") or "Find the first traceback in the log"
            yield self.failed(problem, fix, raised=first)
        elif ended := [how for how in _ENDED if how in logs.values(FROM_OUTSIDE)]:
            yield self.ended_from_outside(ended[0], (), {})
        elif followed := _unexplained(logs):
            problem = f"{who_failed({}, followed)} lost another rank, or waited for it in vain"
            fix = "Find the first traceback of all ranks"
            yield self.failed(problem, fix, raised=followed)

    def failed_first(
        self,
        first: Mapping[str, RankSet],
        broken: Sequence[int],
        ends: Mapping[int, Ending],
        raised: Mapping[str, RankSet],
    ) -> Finding:
        """Report who failed first, as a log says; the records of `broken` end there."""
        everyone = union(first.values())
        ranks = ranks_of(everyone)
        raised = {what: some & everyone for what, some in raised.items() if some & everyone}
        is_one = len(ranks) == 1
        fix = _without_traceback(first, "its host" if is_one else "their hosts")
        fix = fix or f"Find {'its traceback' if is_one else 'their tracebacks'} in the log"
        return self.failed(
            f"{who_failed(first, raised)} failed first{'' if is_one else ' on their hosts'}",
            fix,
            ranks,
            f"{after_step(ends, ranks)}; {broken_off(broken)}" if broken else "",
            evidence_of(ends),
            raised,
        )

    def failed(
        self,
        problem: str,
        fix: str,
        ranks: tuple[int, ...] = (),
        more: str = "",
        evidence: tuple[Table, ...] = (),
        raised: Mapping[str, RankSet] = MappingProxyType({}),
    ) -> Finding:
        """Report a run that failed; what ranks raised brings its own remedy."""
        fix, otherwise = remedy(raised) or (fix, "")
        killed = " SIGKILL often comes from a host that is out of memory." * ("SIGKILL" in problem)
        several = apart = ""
        if twice := in_several(raised.values()):
            several = (
                f" The logs give {named_ranks(twice)} several last exceptions: they are probably "
                "of several runs or starts."
            )
            apart = " Give the logs of one start."
        return self.meta.finding(
            Status.FAIL,
            f"{problem}{more}.",
            problem=problem,
            fix=fix,
            title=RUN_FAILED,
            severity=Severity.HIGH,
            cause=f"{messages(raised) or 'The launcher says so in the log.'}{killed}{several}",
            action=f"{fix}.{otherwise}{apart}",
            ranks=ranks,
            evidence=evidence,
            # A process of unknown rank may have caught what it raised.
            confidence="low" if twice else "high" if all(raised.values()) else "medium",
        )

    def ended_from_outside(
        self, how: str, ranks: Sequence[int], ends: Mapping[int, Ending]
    ) -> Finding:
        """Report who or what ended the job; the records of `ranks` break off there."""
        problem, fix = _ENDED[how]
        killed = f"{after_step(ends, ranks)}; {broken_off(ranks)}" if ranks else ""
        kept = " The record is analysed; up to half a second at its end is missing."
        return self.meta.finding(
            Status.FAIL,
            f"{problem}{killed}.{completed_last(ends, ranks)}",
            problem=problem,
            fix=fix,
            title=problem,
            severity=Severity.MEDIUM,
            cause="The log of the job says so.",
            action=f"{fix}.{kept * bool(ranks)}",
            ranks=tuple(ranks),
            evidence=evidence_of(ends),
            confidence="high",
        )


def _without_traceback(ways: Iterable[str], host: str) -> str:
    """Say what to do where signals or Ray ended processes, without a traceback; "" otherwise."""
    first, *more = ways
    known = "" if more else _WITHOUT_TRACEBACK.get(first, "").format(host=host)
    if known or not all(how.startswith(_SIGNAL) for how in (first, *more)):
        return known
    return "Set PYTHONFAULTHANDLER=1: a crash then writes its stack to the log"


def is_explained(logs: Logs) -> bool:
    """Say whether another rule finds in the logs why the run failed."""
    return any(log.out_of_memory or log.timeouts for log in logs.ranks.values())


def _unexplained(logs: Logs) -> Mapping[str, RankSet]:
    """Return how ranks lost others, unless rule nccl-warning quotes it."""
    if _has_nccl_error(logs):
        return {}
    every, quoted = logs.followed(), logs.warnings()
    return {what: some for what, some in every.items() if not any(text in what for text in quoted)}


def _has_nccl_error(logs: Logs) -> bool:
    """Say whether rule nccl-warning has more to say of the end of a run than its launcher."""
    return any(map(_OF_CAUSE.search, logs.warnings()))
