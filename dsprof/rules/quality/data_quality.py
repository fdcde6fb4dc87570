"""data-quality: what the traces cannot show, and how far what they show can be trusted."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.aggregates.logs import Logs
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import capitalised, named, plural
from dsprof.rules.quality.end_of_run import EndOfRun
from dsprof.rules.quality.limits_of_figures import Thresholds, limits_of_figures
from dsprof.rules.reasons import UNREAD
from dsprof.rules.rule import Rule, RuleMeta

_DROPPED, _UNREADABLE = "dropped event", "unreadable line"


class DataQuality(Rule):
    """Fails what makes figures wrong or partial; mentions what makes them less exact."""

    meta = RuleMeta(
        id="data-quality",
        title="The record is complete",
        failing_title="The record is incomplete",
        why="A missing rank may be the straggler, and dropped events make every sum too small.",
        category="quality",
        order=10,
        needs=(Run, Steps, Endings, EnvironmentFacts, FlightRecorders, Logs),
        judges_end=True,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Report each kind of gap by itself."""
        end = EndOfRun(self.meta, run)
        gaps = [*self._gaps(run, end), *end.interrupted(), *self._remarks(run, thresholds)]
        yield from gaps
        if not gaps and not run[Run].is_recorded:
            title = "The files show no gaps"
            text = "They were not recorded by dsprof: whether they are complete is unknown."
            yield self.meta.finding(Status.PASS, text, title=title)

    def _gaps(self, run: RunSummary, end: EndOfRun) -> Iterable[Finding]:
        facts = run[Run]
        if facts.unread_ranks:
            yield self._missing(facts)
        if facts.unclean_ranks and not run[Endings].ranks:
            yield self._cut(facts.unclean_ranks)
        yield from end.findings()
        if facts.sampled_ranks:
            yield self._sampled(facts.sampled_ranks)
        yield from self._refused(facts)
        if lost := _lost(facts):
            yield self._lost(lost, is_recorded=facts.is_recorded)

    def _missing(self, run: Run) -> Finding:
        """Report missing ranks: a problem where dsprof recorded, for it records on every rank."""
        missing, world = run.unread_ranks, run.first.world_size
        text = f"The traces of {len(missing)} of {world} ranks are missing: {named(missing)}."
        if not run.is_recorded:
            if not run.is_world_known:
                text = (
                    f"The files contain nothing of {named(missing)}; the number of ranks is "
                    "unknown."
                )
            return self.meta.finding(
                Status.INFO,
                text,
                title="Some ranks are missing",
                cause=f"{UNREAD} A straggler among them cannot be detected.",
                action="To compare ranks, give the files of all ranks together.",
                ranks=tuple(missing),
                confidence="high",
            )
        cause, fix = UNREAD, "Give the files of all hosts together"
        action = (
            f"{fix}; `dsprof doctor` on the host of a missing rank checks whether recording would "
            "start there."
        )
        if skipped := run.skipped_of_unread:
            more = f"; and {plural(len(skipped) - 1, 'more file')}" if len(skipped) > 1 else ""
            cause, fix = f"Skipped: {skipped[0]}{more}.", "See why their files were skipped"
            action = f"{fix}: data quality lists each with the reason."
        return self.meta.finding(
            Status.FAIL,
            text,
            problem=f"The traces of {len(missing)} of {world} ranks are missing",
            fix=fix,
            severity=Severity.MEDIUM,
            cause=cause,
            action=action,
            ranks=tuple(missing),
            confidence="high",
        )

    def _cut(self, ranks: list[int]) -> Finding:
        return self.meta.finding(
            Status.FAIL,
            f"The files of {named(ranks)} are truncated: the end is missing.",
            problem=f"The files of {named(ranks)} are truncated",
            severity=Severity.MEDIUM,
            cause="The tool that wrote them was killed, or the copy was incomplete.",
            action="Give the original files. The recorded part is analysed.",
            ranks=tuple(ranks),
            confidence="high",
        )

    def _sampled(self, ranks: list[int]) -> Finding:
        return self.meta.finding(
            Status.FAIL,
            f"Events are missing from the files of {named(ranks)}: sums are too small, and "
            "overlap, idle time and late ranks are unknown.",
            problem=f"Events are missing from the files of {named(ranks)}",
            severity=Severity.HIGH,
            cause="The operator numbers have gaps throughout: the tool that wrote the file sampled "
            "or filtered events.",
            action="Give the file as the profiler exported it.",
            ranks=tuple(ranks),
            confidence="high",
        )

    def _refused(self, run: Run) -> Iterable[Finding]:
        """Report a disk that was full, or failed."""
        refused = {
            rank: facts.trailer
            for rank, facts in run.ranks.items()
            if facts.trailer is not None and facts.trailer.disk_error
        }
        if not refused:
            return
        ranks, worst = [*refused], max(refused.values(), key=lambda one: one.lost_steps)
        most = "up to " if len(ranks) > 1 else ""
        lost = f"{most}{worst.lost_steps:,} of {plural(worst.steps, 'step')}"
        if not worst.lost_steps:  # a program without steps, or in its first one
            lost = f"{most}{plural(worst.dropped, 'record')}"
        is_limit = worst.disk_error == os.strerror(errno.EFBIG)
        yield self.meta.finding(
            Status.FAIL,
            f"The disk refused {'records of ' * bool(worst.lost_steps)}{lost} of {named(ranks)}: "
            f"{worst.disk_error}. Figures cover the rest.",
            problem=f"{capitalised(lost)} were lost: {worst.disk_error}",
            fix="Raise the limit of file sizes" if is_limit else "Free disk space for the traces",
            title="Steps are missing: the disk refused records",
            severity=Severity.MEDIUM,
            cause="A file reached the largest size that the shell (`ulimit -f`), the scheduler or "
            "the file system allows."
            if is_limit
            else "The disk was full or failed. dsprof tried again at least once a minute.",
            action=(
                "Raise that limit" if is_limit else "Free space on the disk that holds the traces"
            )
            + ", or lower `budget_mb`, which limits what each rank writes.",
            ranks=tuple(ranks),
            confidence="high",
        )

    def _lost(self, lost: dict[str, int], *, is_recorded: bool) -> Finding:
        return self.meta.finding(
            Status.FAIL,
            "Parts of the record are lost: "
            + ", ".join(plural(count, name) for name, count in lost.items())
            + ". Sums do not include them.",
            problem="Parts of the record are lost",
            severity=Severity.MEDIUM,
            cause="The writer could not keep up, or a file was damaged.",
            action=_lost_action(lost) if is_recorded else "Give the original files.",
            confidence="high",
        )

    def _remarks(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        if remarks := list(limits_of_figures(run, thresholds)):
            rows = tuple((text,) for text in remarks)
            yield self.meta.finding(
                Status.INFO,
                " ".join(remarks[:2])
                + (f" And {len(remarks) - 2} more." if len(remarks) > 2 else ""),
                title="Limits of the figures",
                evidence=(Table((Column("remark"),), rows),) if len(remarks) > 2 else (),
                confidence="high",
            )


def _lost(run: Run) -> dict[str, int]:
    found = {_DROPPED: 0, _UNREADABLE: 0}
    for facts in run.ranks.values():
        found[_UNREADABLE] += facts.broken_lines
        if facts.trailer is not None and not facts.trailer.disk_error:
            found[_DROPPED] += facts.trailer.dropped
    return {name: count for name, count in found.items() if count}


def _lost_action(lost: dict[str, int]) -> str:
    again = "Copy the file again, if it is a copy. " if _UNREADABLE in lost else ""
    return f"{again}Write to a faster disk, or record fewer steps (start_step, steps)."
