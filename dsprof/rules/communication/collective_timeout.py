"""collective-timeout: torch's watchdog gave up a collective, by what it wrote into the logs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.aggregates.logs import Logs
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.hang.model import HangVerdict
from dsprof.analysis.hang.verdict import verdicts
from dsprof.analysis.rank_sets import RankSet, named_ranks, rank_set, ranks_of, union
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Confidence, Finding, Severity, Status, Table
from dsprof.findings.wording import capitalised, duration, named, named_if_known, plural, ranks_do
from dsprof.rules.evidence.raised import messages, who_failed
from dsprof.rules.reasons import NO_LOG
from dsprof.rules.rule import NoThresholds, Rule, RuleMeta
from dsprof.trace.collectives import is_rooted
from dsprof.trace.rank_log import CollectiveTimeout, LastWork, RankLog

_DUMPS = (
    " Give dsprof the dumps of torch's flight recorder (TORCH_NCCL_DUMP_ON_TIMEOUT=1, and "
    "TORCH_FR_BUFFER_SIZE=2000 or, before torch 2.9, TORCH_NCCL_TRACE_BUFFER_SIZE=2000), which "
    "name the culprit."
)
_DEFAULT_GROUP = "0"
_NONE_COMPLETED = (
    "No collective of the group has ever completed: the devices may be unable to exchange data."
)
_PATHS = (
    " Set NCCL_DEBUG=INFO to log the paths between devices, or NCCL_P2P_DISABLE=1 to avoid direct "
    "ones."
)


class CollectiveTimedOut(Rule):
    """Compares what each rank was waiting for, and counts who is silent; traces know more."""

    meta = RuleMeta(
        id="collective-timeout",
        title="No collective timed out",
        failing_title="A collective timed out",
        why="All ranks of a group wait until the last one arrives. After the timeout each "
        "waiting rank reports itself; the culprit is among the ranks that do not.",
        category="communication",
        order=20,
        needs=(Logs, Run, Endings, FlightRecorders),
    )

    def check(self, run: RunSummary, thresholds: NoThresholds) -> Iterable[Finding]:
        """Report what ranks waited for, and who among them did not."""
        logs = run[Logs]
        if not logs.ranks:
            yield self.meta.not_applicable(NO_LOG)
            return
        waiting = {
            rank: log
            for rank, log in logs.ranks.items()
            if not all(map(log.is_stray, log.timeouts)) or _given_up(log)
        }
        if not waiting and (strays := [one for log in logs.ranks.values() for one in log.timeouts]):
            waiting = {-1: RankLog(timeouts=strays)}
        if not waiting and (
            works := [one for log in logs.ranks.values() for one in log.last_works]
        ):
            by = {one.by_rank for one in works if one.by_rank >= 0}
            whose = f"{named(sorted(by))}, whose log" if by else "a rank whose log"
            yield self.meta.finding(
                Status.FAIL,
                f"A collective timed out on {whose} was not given.",
                problem=f"A collective timed out on {whose} was not given",
                severity=Severity.CRITICAL,
                cause="The ranks of these logs were asked to dump their flight recorders.",
                action="Give the logs of all ranks together.",
                confidence="high",
            )
        if waiting:
            verdict, *_ = verdicts(run[Endings], run[FlightRecorders])
            finding = self._finding(waiting, run, verdict)
            raised = _raised(waiting, logs) if verdict.is_healthy else {}
            yield _explained(finding, raised, waiting, logs) if raised else finding

    def _finding(
        self, waiting: Mapping[int, RankLog], run: RunSummary, verdict: HangVerdict
    ) -> Finding:
        timeouts = {rank: log.timeouts[0] for rank, log in waiting.items() if log.timeouts}
        last = {rank: last for rank, log in waiting.items() if (last := _given_up(log))}
        numbers = {rank: one.seq for rank, one in timeouts.items()}
        numbers |= {rank: one.timed_out for rank, one in last.items()}
        numbers = {rank: number for rank, number in numbers.items() if number >= 0}
        groups = {one.group for one in last.values()} | {one.group for one in timeouts.values()}
        groups -= {""}
        cause, suspects, absent = "", tuple[int, ...](), tuple[int, ...]()
        if len(groups) > 1:
            where = f"collectives of {plural(len(groups), 'group')}"
        else:
            where = _where(timeouts, numbers)
            number = min(numbers.values(), default=-1)
            asked = _asked(run[Logs].ranks.keys() - waiting.keys(), run, groups, number)
            absent = tuple(rank for rank, one in sorted(asked.items()) if one.enqueued < number)
            cause, suspects = (
                _said(waiting)
                or _cause(timeouts, numbers)
                or (
                    _absence(absent, number)
                    if absent
                    else _silence({*waiting, *asked}, run, groups)
                )
            )
        confidence: Confidence = "low" if suspects else ""
        paths = ""
        told = _absent(waiting)
        if suspects and suspects in (absent, told):
            confidence = "medium"
        is_agreed = len(groups) == 1 < len(last) and not absent and not _cause(timeouts, numbers)
        if is_agreed and all(one.completed <= 0 for one in last.values()):
            cause, paths = f"{cause} {_NONE_COMPLETED}".strip(), _PATHS
        if not verdict.is_healthy:  # traces and dumps know more than logs
            cause, suspects, confidence = verdict.sentence, verdict.ranks, verdict.confidence
            paths = ""
        dumps = _DUMPS if verdict.is_healthy and not told else ""
        longest = max((one.waited_ms for one in timeouts.values()), default=0)
        after = f" after {duration(longest * 1e6)}" if longest > 0 else ""
        return self.meta.finding(
            Status.FAIL,
            f"{capitalised(_who(waiting))} timed out in {where}{after}.",
            severity=Severity.CRITICAL,
            cause=cause or "The logs do not say which rank did not join.",
            action=f"{_look_at(suspects)} (py-spy dump).{dumps}{paths}",
            ranks=suspects,
            evidence=(_table(waiting, timeouts, last),),
            confidence=confidence,
        )


def _raised(waiting: Collection[int], logs: Logs) -> dict[str, RankSet]:
    """Return the exceptions that ended ranks which reported no timeout."""
    silent = rank_set(logs.ranks.keys() - set(waiting))
    return {what: ranks & silent for what, ranks in logs.raised().items() if ranks & silent}


def _explained(
    finding: Finding, raised: Mapping[str, RankSet], waiting: Collection[int], logs: Logs
) -> Finding:
    """Return the finding with what ended the ranks that others waited for."""
    ranks = ranks_of(union(raised.values()))
    known = replace(finding, ranks=ranks, confidence="medium")
    if all(logs.ranks[rank].out_of_memory for rank in ranks):
        return replace(
            known,
            severity=Severity.HIGH,  # the lack of memory comes first
            cause=f"{capitalised(named(ranks))} ran out of device memory; others waited.",
            action=f"Give {named(ranks)} enough memory, as device-out-of-memory says.",
        )
    problem = f"{who_failed({}, raised)} failed, and {_who(waiting)} timed out"
    fix = f"Find {'its traceback' if len(ranks) == 1 else 'their tracebacks'} in the log"
    cause = f"{messages(raised) or f'{named(ranks)} failed.'} Others waited for {named(ranks)}."
    return replace(known, problem=problem, fix=fix, cause=capitalised(cause), action=f"{fix}.")


def _who(waiting: Collection[int]) -> str:
    return named_if_known([rank for rank in sorted(waiting) if rank >= 0])


def _where(timeouts: Mapping[int, CollectiveTimeout], numbers: Mapping[int, int]) -> str:
    ops = {one.op for one in timeouts.values()}
    op = min(ops) if len(ops) == 1 else "collective"
    first, last = min(numbers.values(), default=-1), max(numbers.values(), default=-1)
    if first == last:
        return f"{op} number {first:,}" if first >= 0 else f"a {op}"
    return f"{op}s number {first:,} to {last:,}"


def _absent(waiting: Mapping[int, RankLog]) -> tuple[int, ...]:
    """Return the ranks that did not come, as those that waited for them say."""
    timeouts = (one for log in waiting.values() for one in log.timeouts)
    return tuple(sorted({rank for one in timeouts for rank in one.absent}))


def _said(waiting: Mapping[int, RankLog]) -> tuple[str, tuple[int, ...]] | None:
    if not (absent := _absent(waiting)):
        return None
    return f"{capitalised(named(absent))} did not join, as gloo's message says.", absent


def _cause(
    timeouts: Mapping[int, CollectiveTimeout], numbers: Mapping[int, int]
) -> tuple[str, tuple[int, ...]] | None:
    """Say what differs between the ranks that reported, never more; None if nothing does."""
    first = min(numbers.values(), default=-1)
    behind = tuple(sorted(rank for rank, number in numbers.items() if number == first))
    if len(behind) < len(numbers):
        stuck = (timeouts[rank].op for rank in behind if rank in timeouts)
        rooted = {op for op in stuck if is_rooted(op)}
        why = (
            f"Some ranks leave a {min(rooted)} before others complete it, so no mismatch is "
            "proven: the network may not carry the data."
            if rooted
            else "A device did not complete it, or the ranks issue different collectives."
        )
        where = f"{ranks_do(behind, 'wait')} in collective number {first:,}"
        return f"{where}, the others in later ones. {why}", behind
    if len({(one.op, one.elements) for one in timeouts.values()}) > 1:
        return "Ranks wait in different collectives under the same number.", ()
    return None


def _given_up(log: RankLog) -> LastWork | None:
    """Return the last works of a rank whose own watchdog gave up; None for others."""
    return next((one for one in log.last_works if one.timed_out >= 0), None)


def _asked(
    ranks: Iterable[int], run: RunSummary, groups: set[str], number: int
) -> dict[int, LastWork]:
    """Return the last works of ranks that another one asked for a dump, before or in a collective.

    Only of the group in which it timed out: other groups have numbers of their own.
    """
    works = ((rank, one) for rank in ranks for one in run[Logs].ranks[rank].last_works)
    return {rank: one for rank, one in works if one.group in groups and one.completed < number}


def _absence(absent: tuple[int, ...], number: int) -> tuple[str, tuple[int, ...]]:
    """Name the ranks that have not issued the collective for which the others wait."""
    who = capitalised(named(absent))
    return f"{who} had not issued collective number {number:,}; the others wait in it.", absent


def _silence(
    waiting: Collection[int], run: RunSummary, groups: set[str]
) -> tuple[str, tuple[int, ...]]:
    """Say who reported nothing, while all others wait in the same collective."""
    if -1 in waiting:
        return "", ()
    same = "All of them wait in the same collective, so no mismatch is visible. "
    if len(waiting) == 1:
        same = ""
    logged = run[Logs].ranks
    facts = run[Run]
    size = max(facts.first.world_size, max(logged) + 1)
    silent = tuple(rank for rank in range(size) if rank not in waiting)
    if not silent:
        is_known = facts.is_world_known and size == facts.first.world_size
        other = "the network does not carry the data" if is_known else "a higher rank is missing"
        return f"{same}A rank is stuck on its device, or {other}.", ()
    why = ["stuck", "ended"]
    why += [] if groups == {_DEFAULT_GROUP} else ["not in the group"]
    if not all(rank in logged for rank in silent):
        why.append("not in these logs")
    text = f"{same}No report from {named(silent)}: {', '.join(why[:-1])} or {why[-1]}."
    return text, silent if 2 * len(silent) <= size else ()


def _look_at(suspects: tuple[int, ...]) -> str:
    if not suspects:
        return "Read the end of the log and the stack of every rank"
    ranks = named_ranks(rank_set(suspects))
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
                rank if rank >= 0 else None,
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
        caption=f"As written by the watchdog of {_who(waiting)}",
    )
