"""restarted-job: the workers were started more than once, and what that cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dsprof.analysis.aggregates.epochs import FAILED, Epoch, Epochs
from dsprof.analysis.aggregates.logs import Logs
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.wording import (
    capitalised,
    long_duration,
    named,
    percent,
    plural,
    shortened,
)
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.trace.rank_log import LogStarts


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How much time restarts may cost."""

    lost_share: float = 0.05  # of the time from the first start to the end
    severe_share: float = 0.2


class RestartedJob(Rule):
    """Adds up the time between epochs and the time of repeated steps."""

    meta = RuleMeta(
        id="restarted-job",
        title="The job ran without a restart",
        failing_title="The job restarted",
        why="A restart costs the time until the failure is noticed, the start of all ranks, and "
        "the steps since the last checkpoint.",
        category="steps",
        order=445,
        needs=(Run, Epochs, Logs),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Say what the restarts cost, and which ranks ended the epochs before them."""
        found = run[Epochs]
        if not found.each:
            starts = [one for log in run[Logs].ranks.values() for one in log.starts]
            yield from map(self._logged, starts)
            if not (starts or run[Run].is_recorded):
                yield self.meta.not_applicable("Files of other tools do not show restarts.")
            return
        if beside := next((two for two in pairwise(found.each) if _overlap(*two)), None):
            yield self._at_once(*beside)
            return
        failed = [one for one in found.each[:-1] if one.end in FAILED]
        if not failed:
            yield self._made_again(found)
            return
        share = found.lost_share
        is_costly = share >= thresholds.lost_share
        who = _culprits(failed)
        yield self.meta.finding(
            Status.FAIL if is_costly else Status.INFO,
            f"{_restarts(found)} cost {_cost(found)}. {_ends(failed, who)}",
            problem=f"{_restarts(found)} cost {percent(share)} of the job's time",
            fix=f"Find out why {who or f'epoch {failed[-1].number}'} failed",
            severity=Severity.HIGH if share >= thresholds.severe_share else Severity.MEDIUM,
            cause=failed[-1].why,
            action=_action(found, failed),
            confidence="high" if all(one.ranks for one in failed) else "medium",
        )

    def _logged(self, found: LogStarts) -> Finding:
        name, errors = shortened(found.file), ", ".join(map(shortened, found.errors))
        after = f" Before the last one: {errors}." if errors else ""
        return self.meta.finding(
            Status.FAIL if errors else Status.INFO,
            f"{name} contains {found.count} starts of the job; the last one is analysed.{after}",
            problem=f"The job restarted after: {shortened(found.errors[0])}" if errors else "",
            fix="Analyse the part of the log before the last start",
            severity=Severity.MEDIUM,
            action=f"Extract the earlier starts with `head -c {found.last_at_bytes} LOG > "
            "earlier.log`, and analyse them with `dsprof report earlier.log`.",
            confidence="high",
        )

    def _at_once(self, one: Epoch, other: Epoch) -> Finding:
        """Report what looks like a restart because two processes have the same rank."""
        problem = f"Epochs {one.number} and {other.number} ran at the same time"
        return self.meta.finding(
            Status.FAIL,
            f"{problem}: this is not a restart but two runs with the same ranks.",
            problem=problem,
            fix="Give each job its own folder, and each process its own RANK",
            title="Two runs look like one that restarted",
            severity=Severity.HIGH,
            cause="Two jobs wrote to one folder, or processes have the same RANK.",
            action="Give each job its own folder (`out`), and each process its own RANK. Analyse "
            f"these runs separately, with --epoch {one.number} and --epoch {other.number}.",
            confidence="high",
        )

    def _made_again(self, found: Epochs) -> Finding:
        sizes = ", then ".join(str(one.world_size) for one in found.each)
        return self.meta.finding(
            Status.INFO,
            f"The process group was created {len(found.each) + found.unread} times, with {sizes} "
            f"ranks, and no failure is recorded. This cost {_cost(found)}.",
            title="The process group was recreated",
        )


def _overlap(one: Epoch, other: Epoch) -> bool:
    return one.span.overlaps(other.span)


def _restarts(found: Epochs) -> str:
    return plural(found.restarts, "restart")


def _cost(found: Epochs) -> str:
    """Say what share of the time was lost, in what, and what is unknown."""
    repeated = [one.repeated for one in found.each[1:]]
    steps = sum(filter(None, repeated))
    told = [f"{long_duration(found.gap_ns)} between epochs"]
    if any(one.gap_ns is None and one.span.steps_ns for one in found.each):
        told = ["time between epochs unknown because the clock was set back"]
    if steps:
        told.append(f"{long_duration(found.repeated_ns)} in {plural(steps, 'repeated step')}")
    if silent := sum(one.unrecorded for one in found.each):
        told.append(f"{plural(silent, 'start')} ended before the first collective")
    if None in repeated:
        told.append("repeated steps unknown")
    whole = f"{percent(found.lost_share)} of {long_duration(found.whole_ns)}"
    return f"{whole}: {', '.join(told)}"


def _culprits(failed: Sequence[Epoch]) -> str:
    """Name the ranks, or the one host, that all failures have in common; "" without any."""
    if common := set(failed[0].ranks).intersection(*(one.ranks for one in failed[1:])):
        return named(common)
    hosts = failed[0].where.intersection(*(one.where for one in failed[1:]))
    others = {host for one in failed for host in one.hosts} - hosts
    return f"host {shortened(min(hosts))}" if len(hosts) == 1 and others else ""


def _ends(failed: Sequence[Epoch], who: str) -> str:
    if who and len(failed) > 1:
        return f"{capitalised(who)} failed in each of {plural(len(failed), 'epoch')}."
    told = [f"epoch {one.number} {_end(one)}" for one in failed[-3:]]
    more = len(failed) - len(told)
    others = f"{plural(more, 'earlier epoch')} failed, too" if more else ""
    return f"{capitalised('; '.join(filter(None, (*told, others))))}."


def _end(one: Epoch) -> str:
    return {
        "crashed": f"crashed{f' ({named(one.ranks)})' if one.ranks else ''}",
        "stuck": f"was stuck{f' ({named(one.ranks)})' if one.ranks else ''}",
    }.get(one.end, "breaks off: its processes were killed, or crashed")


def _action(found: Epochs, failed: Sequence[Epoch]) -> str:
    look = f"See how it ended: `dsprof report FOLDER --epoch {failed[-1].number}`."
    if anew := [one for one in found.each if one.repeated and one.begins_anew]:
        return (
            f"{look} Load the last checkpoint at each start, with the optimizer's state: epoch "
            f"{anew[-1].number} counts its steps from 0. If only the model was loaded, no step "
            "was repeated."
        )
    if found.repeated_ns > found.gap_ns:
        return f"{look} Save checkpoints more often: most of the time is lost in repeated steps."
    if any(one.end == "stuck" for one in failed):
        return f"{look} Shorten the timeout of the process group, to end a stuck epoch earlier."
    return look
