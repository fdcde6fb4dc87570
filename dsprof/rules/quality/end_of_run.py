"""How a run ended, where that is no good end: by the records of its ranks and by logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.aggregates.logs import Logs
from dsprof.analysis.aggregates.run import Run, is_of_memory
from dsprof.analysis.ending import Ending, first_failed
from dsprof.analysis.hang.ends import ended_with, exited_before, hung_at_end, silent_before
from dsprof.analysis.hang.fates import killed_beside
from dsprof.analysis.hang.model import HangVerdict
from dsprof.analysis.hang.verdict import verdicts
from dsprof.analysis.hang.waits import Hang
from dsprof.analysis.rank_sets import RankSet, ranks_of, union
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.wording import broken_off, capitalised, duration, named
from dsprof.rules.evidence.endings import (
    after_step,
    completed_last,
    evidence_of,
    known_ends,
    on_ranks,
    raised_at,
)
from dsprof.rules.evidence.hang_remedies import after_kills
from dsprof.rules.evidence.hang_remedies import remedy as remedy_of_hang
from dsprof.rules.evidence.raised import (
    who_failed,
)
from dsprof.rules.quality.logged_end import (
    ENDED_BY_SIGNAL,
    ENDED_BY_SLURM,
    TOO_MUCH_HOST_MEMORY,
    LoggedEnd,
    is_explained,
)
from dsprof.rules.rule import RuleMeta
from dsprof.trace.rank_log import (
    FAILED_FIRST,
    FROM_OUTSIDE,
    HOST_MEMORY,
    LAUNCHER,
)
from dsprof.trace.schema import EXIT

_LONG_NS = 10 * 10**9


class EndOfRun(NamedTuple):
    """The end of a run, as findings of a rule state it."""

    meta: RuleMeta
    run: RunSummary

    def findings(self) -> Iterable[Finding]:
        """Report records that break off, exceptions, and what logs say without a record."""
        facts, endings = self.run[Run], self.run[Endings]
        hung = [rank for rank in facts.left_ranks if endings.ranks[rank].hangs_at_end]
        left = [rank for rank in facts.left_ranks if rank not in hung]
        ended = [] if self._has_ended_otherwise(left) else left
        unclean = sorted({*facts.unclean_ranks, *left} - {*ended})
        if hung:
            yield self._hung(hung)
        if unclean and endings.ranks:
            yield self._by_ray() if _has_ray_ended(self.run) else self._unclean(unclean)
        if ended:
            yield self._left(ended)
        if not facts.is_recorded:
            yield from LoggedEnd(self.meta, self.run).without_records()
        # Rule device-out-of-memory explains the others.
        exceptions = {w: some for w, some in facts.exceptions.items() if not is_of_memory(w)}
        if exceptions:
            yield self._failed(exceptions)
        if not (unclean or facts.exceptions) and (first := self.run[Logs].values(FAILED_FIRST)):
            yield from self._failed_after_record(first)

    def interrupted(self) -> Iterable[Finding]:
        """Report the ranks that Ctrl-C ended."""
        run, endings = self.run[Run], self.run[Endings]
        ranks = sorted(r for r, end in endings.ranks.items() if end.is_interrupted)
        ends = known_ends(endings.ranks, ranks, run.selection)
        if ranks:
            yield self.meta.finding(
                Status.INFO,
                f"Ctrl-C ended {named(ranks)}{after_step(ends, ranks)}."
                f"{completed_last(ends, ranks)}",
                title="The run was interrupted",
                ranks=tuple(ranks),
                evidence=evidence_of(ends),
            )

    def _has_ended_otherwise(self, left: Sequence[int]) -> bool:
        """Say whether it is known what ended ranks after they had destroyed their group."""
        logs, endings = self.run[Logs], self.run[Endings]
        first = ranks_of(union(_first_failures(logs, endings).values()))
        by_log = logs.values(FROM_OUTSIDE) or HOST_MEMORY in logs.values(LAUNCHER)
        return bool(by_log or {*first} & {*left} or any(map(endings.killed_for_memory, left)))

    def _left(self, ranks: Sequence[int]) -> Finding:
        """Report ranks that were killed, or left by os._exit, after their part of the run."""
        run, endings = self.run[Run], self.run[Endings]
        ends = known_ends(endings.ranks, ranks, run.selection)
        missing_ns = max(run.ranks[rank].left_missing_ns or 0 for rank in ranks)
        missing = f"up to the last {duration(missing_ns)}" if missing_ns else "nothing"
        whose, who = ("its record", "It") if len(ranks) == 1 else ("their records", "They")
        later_ns = max(endings.ranks[r].alive_ns - (endings.ranks[r].left_ns or 0) for r in ranks)
        lived = f", and lived for another {duration(later_ns)}" if later_ns > _LONG_NS else ""
        return self.meta.finding(
            Status.INFO,
            f"{capitalised(named(ranks))} destroyed the process group{after_step(ends, ranks)}, "
            f"then did not close {whose}: {missing} before that is missing.",
            title="Records end with the process group",
            cause=f"{who} called destroy_process_group(){lived}. No wait had failed by then. Ray "
            "and other launchers kill workers that are done, and os._exit() ends a process at "
            "once. A program that catches an error of its own, then leaves its group, looks the "
            "same.",
            action="Make `dsprof.disable()` the last line of the training function.",
            ranks=tuple(ranks),
            evidence=evidence_of(ends),
            confidence="high",
        )

    def _failed_after_record(self, first: Mapping[str, RankSet]) -> Iterable[Finding]:
        """Report ranks that failed, as a log says, and closed their records without an error."""
        ranks, ends = ranks_of(union(first.values())), self.run[Endings].ranks
        trailers = [ends[rank].trailer for rank in ranks if rank in ends]
        if len(trailers) == len(ranks) and all(one and one.reason == EXIT for one in trailers):
            yield self.meta.finding(
                Status.INFO,
                f"{who_failed(first, {})} failed first, as the log says, and closed "
                f"{'its record' if len(ranks) == 1 else 'their records'} without an error.",
                title="Ranks failed after their records ended",
                cause="The program caught an error and exited with a code, it crashed as it ended, "
                "or the log is of another run.",
                action=f"Read the last lines of the log of {named(ranks)}.",
                ranks=ranks,
                confidence="medium",
            )

    def _hung(self, ranks: Sequence[int]) -> Finding:
        """Report ranks in which no Python ran after their part of the run."""
        endings = self.run[Endings]
        verdict = hung_at_end(ranks, endings)
        problem = f"{capitalised(named(ranks))} hung after destroy_process_group()"
        return self.meta.finding(
            Status.FAIL,
            f"{problem}{after_step(endings.ranks, ranks)}: no Python ran any more.",
            problem=problem,
            title="A rank hung as it ended",
            severity=Severity.MEDIUM,
            cause=verdict.cause.text,
            action=remedy_of_hang(verdict, Hang(FlightRecorders({}), (), ()), endings),
            ranks=tuple(ranks),
            evidence=evidence_of(endings.ranks),
            confidence=verdict.confidence,
        )

    def _unclean(self, ranks: Sequence[int]) -> Finding:
        run, endings, logs = self.run[Run], self.run[Endings], self.run[Logs]
        ends = known_ends(endings.ranks, ranks, run.selection)
        logged = LoggedEnd(self.meta, self.run)
        if ended := [how for how in ENDED_BY_SLURM if how in logs.values(FROM_OUTSIDE)]:
            return logged.ended_from_outside(ended[0], ranks, ends)
        first = {} if is_explained(logs) else _first_failures(logs, endings)
        raised = {rank for some in run.exceptions.values() for rank in some}
        interrupted = {rank for rank, end in endings.ranks.items() if end.is_interrupted}
        if first and not {*ranks_of(union(first.values()))} <= raised | interrupted:
            return logged.failed_first(first, ranks, ends, logs.raised())
        if HOST_MEMORY in logs.values(LAUNCHER):
            return logged.failed(*TOO_MUCH_HOST_MEMORY, evidence=evidence_of(ends))
        problem = f"{capitalised(broken_off(ranks))}{after_step(ends, ranks)}"
        others = {*ended_with(ranks, endings.ranks)}
        if failed := others & raised or others & interrupted:
            because = "failed" if failed & raised else "ended by Ctrl-C"
            return self.meta.finding(
                Status.INFO,
                f"{problem}: probably killed because {named(failed)} {because}.",
                title="Records break off because another rank ended",
                cause="A launcher kills the other ranks when one of them fails.",
                ranks=tuple(ranks),
                evidence=evidence_of(ends),
                confidence="medium",
            )
        if ended := [how for how in ENDED_BY_SIGNAL if how in logs.values(FROM_OUTSIDE)]:
            return logged.ended_from_outside(ended[0], ranks, ends)
        exited = (
            f" {capitalised(named(others))} had exited without an exception: if by an error code, "
            "such as by sys.exit(1), the launcher killed the others."
        )
        return self.meta.finding(
            Status.FAIL,
            f"{problem}: killed, crashed, or still running."
            f"{completed_last(ends, ranks)}{_in_flight(run, ranks) if ends else ''}",
            problem=problem,
            fix=f"Read the last lines of the log of {named(ranks)}",
            title="Records break off",
            severity=Severity.HIGH,
            cause="A process that exits closes its record, unless its disk is too slow. A process "
            "that is killed by a signal or by the job's time limit, or calls os._exit(), cannot."
            f"{exited * bool(others)}",
            action=f"Read the last lines of the log of {named(ranks)}; `ends early` there means a "
            "disk that is too slow. Give the log of torchrun to the report, too: it names the rank "
            "that failed first. What was recorded is analysed; of a killed process up to the last "
            "half second is missing.",
            ranks=tuple(ranks),
            evidence=evidence_of(ends),
            confidence="high",
        )

    def _by_ray(self) -> Finding:
        ranks = self.run[Run].unclean_ranks
        ends = {rank: self.run[Endings].ranks[rank] for rank in ranks}
        return self.meta.finding(
            Status.FAIL,
            f"{capitalised(broken_off(ranks))}{after_step(ends, ranks)}, when Ray ended them.",
            title="Records break off",
            severity=Severity.LOW,
            cause="Ray kills workers that are done, so their records are not closed. Up to the "
            "last half second is missing. A worker that failed there looks the same.",
            action="Make `dsprof.disable()` the last line of the training function.",
            fix="End the training function by `dsprof.disable()`",
            ranks=tuple(ranks),
            evidence=evidence_of(ends),
            confidence="medium",
        )

    def _failed(self, exceptions: Mapping[str, list[int]]) -> Finding:
        endings = self.run[Endings]
        failed = {rank for some in exceptions.values() for rank in some}
        known = {rank: end for rank, end in endings.ranks.items() if rank in failed}
        if silent := silent_before(known, endings.ranks):
            how = f"{capitalised(broken_off(sorted(silent)))} earlier"
            return self._followed(exceptions, sorted(failed), sorted(silent), how)
        if known and all(map(endings.has_followed, known)):
            full = [
                rank
                for rank, end in sorted(endings.ranks.items())
                if end.trailer is not None and is_of_memory(end.trailer.exception)
            ]
            if full:
                how = f"{capitalised(named(full))} ran out of device memory"
                return self._followed(exceptions, sorted(failed), full, how)
            return self._lost_others(exceptions, known)
        if known and all(end.has_lost_others for end in known.values()):
            verdict, *_ = verdicts(endings, self.run[FlightRecorders])
            return self._timed_out(exceptions, sorted(known), verdict)
        followed = sorted(known.keys() - first_failed(known))
        first = {
            what: kept
            for what, some in exceptions.items()
            if (kept := [rank for rank in some if rank not in followed])
        }
        told = ", ".join(
            f"{w} ({named(some)}{raised_at(some, known)})" for w, some in first.items()
        )
        ranks = sorted(failed - {*followed})
        is_named = len(ranks) < len(endings.ranks) or len(ranks) == 1
        lost = f" {capitalised(named(followed))} then lost the connection or timed out."
        look = f"Find the traceback of {named(ranks)} in the logs"
        of_known = [rank for rank in ranks if rank in known][:1]
        killed = "".join(killed_beside(rank, endings) for rank in of_known)
        remedy = "".join(after_kills(rank, endings) for rank in of_known)
        return self.meta.finding(
            Status.FAIL,
            f"The program failed: {told}.{lost * bool(followed)}",
            problem=f"The program failed: {told}",
            fix=look if is_named else "Find the first traceback in the logs",
            title="Ranks ended by an exception",
            severity=Severity.HIGH,
            cause=f"The program did not catch the exception.{killed} The record up to it is "
            "complete and analysed.",
            action=f"{look}.{remedy}"
            if is_named
            else "Find the first traceback in the logs: a rank that fails leaves the others in a "
            f"collective, which then fails as well.{remedy}",
            ranks=tuple(ranks),
            confidence="high",
        )

    def _lost_others(self, exceptions: Iterable[str], failed: Mapping[int, Ending]) -> Finding:
        """Report ranks that failed because another one had: none of them is the cause."""
        endings = self.run[Endings]
        who, has_all = capitalised(named(sorted(failed))), endings.has_all
        exited = exited_before(failed, endings.ranks)
        problem = f"{who} lost the connection to another rank or timed out"
        look = "Find the first traceback in the logs"
        cause = "Another rank failed first; its trace was not read."
        action = f"{look} of all ranks{'' if has_all else ', or analyse all their traces'}."
        if exited:
            look = f"Find out why {named(exited)} ran fewer iterations"
            cause = f"{capitalised(named(exited))} had ended without an exception before."
            action = f"{look}."
        elif has_all:
            cause = "No rank recorded an exception of its own."
        return self.meta.finding(
            Status.FAIL,
            f"{problem}: {', '.join(exceptions)}.",
            problem=problem,
            fix=look,
            title="Ranks lost the connection to others",
            severity=Severity.HIGH,
            cause=cause,
            action=action,
            confidence="high",
        )

    def _timed_out(
        self, exceptions: Iterable[str], ranks: Sequence[int], verdict: HangVerdict
    ) -> Finding:
        """Report ranks that gave up a call, as a consequence where it is known for whom."""
        late = [rank for rank in ranks if not self.run[Endings].has_followed(rank)]
        lost = [rank for rank in ranks if rank not in late]
        problem = f"A call of {named(late)} timed out"
        told = f"{problem}: {', '.join(exceptions)}."
        told += f" {capitalised(named(lost))} lost the connection to another rank." if lost else ""
        if verdict.ranks and not verdict.is_healthy:
            return self.meta.finding(
                Status.INFO,
                told,
                title="Calls timed out",
                cause=verdict.sentence,
                ranks=tuple(ranks),
                confidence=verdict.confidence,
            )
        return self.meta.finding(
            Status.FAIL,
            told,
            problem=problem,
            fix="Find out what the call waited for",
            title="Calls timed out",
            severity=Severity.HIGH,
            cause="A rank did not join the call in time, called another one, or the timeout is too "
            "short.",
            action="Find out what the call waited for: `dsprof hang FOLDER` says it, if that is on "
            "record.",
            ranks=tuple(ranks),
            confidence="high",
        )

    def _followed(
        self, exceptions: Iterable[str], failed: Sequence[int], first: Sequence[int], how: str
    ) -> Finding:
        kinds = ", ".join(exceptions)
        return self.meta.finding(
            Status.INFO,
            f"{capitalised(named(failed))} ended by {kinds}: the connection to another rank was "
            f"lost. {how}.",
            title="Ranks lost the connection to a rank that had ended",
            cause=f"The exception is a consequence of the end of {named(first)}.",
            action=f"Find out why {named(first)} ended.",
            ranks=tuple(failed),
            confidence="high",
        )


def _first_failures(logs: Logs, endings: Endings) -> Mapping[str, RankSet]:
    """Return how ranks failed first on their hosts; not those that only lost one of another."""
    told = logs.values(FAILED_FIRST)
    followed = union(1 << r for r, end in endings.ranks.items() if end.has_lost_others)
    first = {how: ranks & ~followed for how, ranks in told.items() if ranks & ~followed}
    return first or told


def _has_ray_ended(run: RunSummary) -> bool:
    """Whether all ranks are workers of Ray whose records break off after the same step, idle."""
    facts, ends = run[Run], run[Endings].ranks
    of_ray = union(run[EnvironmentFacts].variables.get("RAY_JOB_ID", {}).values())
    ranks = [*range(facts.first.world_size)]
    if ranks_of(of_ray) != tuple(ranks) or facts.unclean_ranks != ranks or run[Logs].ranks:
        return False
    is_idle = not any(facts.ranks[rank].in_flight for rank in ranks)
    return is_idle and ends.keys() == {*ranks} and len({end.step for end in ends.values()}) == 1


def _in_flight(run: Run, ranks: Iterable[int]) -> str:
    """Say which of the ranks whose record breaks off had a collective in flight."""
    calls = {rank: run.ranks[rank].in_flight for rank in ranks}
    awaited = {rank: call for rank, call in calls.items() if call}
    if not awaited:  # what a device had not ended is not seen
        return " No collective in flight was recorded." if run.is_cpu else ""
    return f" In flight at the end: {on_ranks(awaited)}."
