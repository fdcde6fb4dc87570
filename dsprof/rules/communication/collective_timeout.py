"""collective-timeout: torch's watchdog gave up a collective, by what it wrote into the logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.environment import named_ranks
from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.aggregates.logs import Logs, ranks_that
from dsprof.analysis.hang.model import HangVerdict
from dsprof.analysis.hang.verdict import verdicts
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import duration, named, ranks_do
from dsprof.rules.reasons import NO_LOG
from dsprof.rules.rule import NoThresholds, Rule, RuleMeta
from dsprof.trace.rank_log import CollectiveTimeout, LastWork, RankLog

_DUMPS = (
    " Give dsprof the dumps of torch's flight recorder (TORCH_NCCL_DUMP_ON_TIMEOUT=1, and "
    "TORCH_FR_BUFFER_SIZE=2000 or, before torch 2.9, TORCH_NCCL_TRACE_BUFFER_SIZE=2000), which "
    "name the culprit."
)


class CollectiveTimedOut:
    """Compares what each rank was waiting for, and counts who is silent; traces know more."""

    meta = RuleMeta(
        id="collective-timeout",
        title="No collective timed out",
        failing_title="A collective timed out",
        why="All ranks of a group wait until the last one arrives. After the timeout each "
        "waiting rank reports itself; the culprit is among the ranks that do not.",
        category="communication",
        order=20,
        needs=(Logs, Endings, FlightRecorders),
    )
    thresholds = NoThresholds()

    def check(self, run: RunSummary, thresholds: NoThresholds) -> Iterable[Finding]:
        """Report what ranks waited for, and who among them did not."""
        logs = run[Logs]
        if not logs.ranks:
            yield self.meta.not_applicable(NO_LOG)
            return
        waiting = {rank: log for rank, log in logs.ranks.items() if log.timeouts or log.last_works}
        if waiting:
            yield self._finding(waiting, verdicts(run[Endings], run[FlightRecorders])[0])

    def _finding(self, waiting: Mapping[int, RankLog], verdict: HangVerdict) -> Finding:
        timeouts = {rank: log.timeouts[0] for rank, log in waiting.items() if log.timeouts}
        last = {rank: log.last_works[0] for rank, log in waiting.items() if log.last_works}
        numbers = {rank: one.seq for rank, one in timeouts.items()}
        numbers |= {rank: one.timed_out for rank, one in last.items()}
        groups = {one.group for one in last.values()} | {one.group for one in timeouts.values()}
        groups -= {""}
        is_one_group = len(groups) < 2
        kinds = {(one.op, one.elements) for one in timeouts.values()}
        present = ranks_that(waiting)
        silent = tuple(rank for rank in range(max(waiting)) if rank not in waiting)
        cause, suspects = self._cause(numbers, kinds, silent) if is_one_group else ("", ())
        confidence = "low" if suspects else ""
        if not verdict.is_healthy:  # traces and dumps know more than logs
            cause, suspects, confidence = verdict.sentence, verdict.ranks, verdict.confidence
        longest = max((one.waited_ms for one in timeouts.values()), default=0)
        what = next(iter(timeouts.values()), None)
        name = what.op if what else "collective"
        return self.meta.finding(
            Status.FAIL,
            f"{named_ranks(present).capitalize()} timed out in {name} number "
            f"{min(numbers.values())}" + (f" after {duration(longest * 1e6)}." if longest else "."),
            severity=Severity.CRITICAL,
            cause=cause or "The logs do not say which rank did not join.",
            action=f"{_look_at(suspects)} (py-spy dump).{_DUMPS * verdict.is_healthy}",
            ranks=suspects,
            evidence=(_table(waiting, timeouts, last),),
            confidence=confidence,
        )

    def _cause(
        self, numbers: Mapping[int, int], kinds: set[tuple[str, int]], silent: tuple[int, ...]
    ) -> tuple[str, tuple[int, ...]]:
        """Say what the logs point to, never more: what a rank did not write is not known."""
        known = {rank: number for rank, number in numbers.items() if number >= 0}
        first = min(known.values(), default=-1)
        behind = tuple(sorted(rank for rank, number in known.items() if number == first))
        if len(set(known.values())) > 1:
            return (
                f"{ranks_do(behind, 'wait')} in collective number {first}, the others in a later "
                "one: the ranks issue different collectives.",
                behind,
            )
        if len(kinds) > 1:
            return "Ranks wait in different collectives under the same number.", ()
        same = "All of them wait in the same collective, so no mismatch is visible. "
        if silent:
            ranks = named_ranks(ranks_that(silent))
            log = "its log is" if len(silent) == 1 else "their logs are"
            return (
                f"{same}No report from {ranks}: stuck or ended, or {log} not given.",
                silent,
            )
        return (
            f"{same}A rank with a higher number is missing, or a rank is stuck on its device.",
            (),
        )


def _look_at(suspects: tuple[int, ...]) -> str:
    if not suspects:
        return "Read the end of the log and the stack of every rank"
    ranks = named_ranks(ranks_that(suspects))
    if len(suspects) == 1:
        return f"Read the end of the log and the stack of {ranks}"
    return f"Read the ends of the logs and the stacks of {ranks}"


def _table(
    waiting: Mapping[int, RankLog],
    timeouts: Mapping[int, CollectiveTimeout],
    last: Mapping[int, LastWork],
) -> Table:
    rows = []
    for rank in sorted(waiting)[:48]:
        given_up, at = timeouts.get(rank), last.get(rank)
        rows.append(
            (
                rank,
                given_up.op if given_up else None,
                given_up.elements if given_up and given_up.elements >= 0 else None,
                at.timed_out if at else given_up.seq if given_up and given_up.seq >= 0 else None,
                at.completed if at else None,
                at.enqueued if at else None,
            )
        )
    return Table(
        columns=(
            Column("rank"),
            Column("waits in"),
            Column("elements", "count"),
            Column("number"),
            Column("last completed"),
            Column("last enqueued"),
        ),
        rows=tuple(rows),
        caption=f"As the watchdog of each rank wrote it; {named(sorted(waiting))} wrote",
    )


RULE: Rule = CollectiveTimedOut()
