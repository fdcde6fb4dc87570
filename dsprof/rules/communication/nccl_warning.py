"""nccl-warning: NCCL, RCCL or torch wrote a warning or an error of communication."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from dsprof.analysis.aggregates.logs import Logs
from dsprof.analysis.rank_sets import RankSet, ranks_of, union, written_ranks
from dsprof.analysis.summary import RunSummary
from dsprof.files.tables import rows
from dsprof.findings.finding import Column, Finding, Severity, Status, Table, worst
from dsprof.findings.wording import capitalised, named_if_known, plural
from dsprof.rules.reasons import NO_NCCL_LOG
from dsprof.rules.rule import NoThresholds, Rule, RuleMeta

_ROWS = 32
_UNHANDLED = "NCCL error: unhandled"


class _Known(NamedTuple):
    pattern: re.Pattern[str]
    severity: Severity
    meaning: str
    action: str


class _Warning(NamedTuple):
    text: str
    ranks: RankSet
    lines: int
    known: _Known | None


class NcclWarning(Rule):
    """Looks up warnings in `knowledge/nccl_warnings.csv`; what is not there is shown as it is."""

    meta = RuleMeta(
        id="nccl-warning",
        title="NCCL wrote no warning",
        failing_title="NCCL wrote warnings",
        why="An NCCL warning is easily missed among thousands of lines, and may be the only "
        "sign of what later becomes a hang or an unexplained error.",
        category="communication",
        order=60,
        needs=(Logs,),
    )

    def check(self, run: RunSummary, thresholds: NoThresholds) -> Iterable[Finding]:
        """Report known warnings, the most severe first, and mention the others."""
        logs = run[Logs]
        found = [
            _Warning(
                text, ranks, lines, next((k for k in _knowledge() if k.pattern.search(text)), None)
            )
            for text, (ranks, lines) in logs.warnings().items()
        ]
        if not found and not logs.is_nccl:
            yield self.meta.not_applicable(NO_NCCL_LOG)
            return
        known = [(one.known, one) for one in found if one.known]
        if known:
            # Of an unhandled error another line names the cause.
            causes = [pair for pair in known if _UNHANDLED not in pair[1].text] or known
            highest = worst(what.severity for what, _ in causes)
            first, warning = next(pair for pair in causes if pair[0].severity is highest)
            actions = dict.fromkeys([first.action, *(what.action for what, _ in causes)])
            who = named_if_known(ranks_of(warning.ranks))
            where = f" on {who}" if warning.ranks else ""
            reports = "report" if warning.ranks.bit_count() > 1 else "reports"
            yield self.meta.finding(
                Status.INFO if highest is Severity.NONE else Status.FAIL,
                f"“{warning.text}”{where}: {first.meaning}.",
                title=self.meta.failing_title if logs.is_nccl else "torch reports an error",
                problem=f"{capitalised(who)} {reports}: {first.meaning}",
                severity=highest,
                action=" ".join(actions),
                ranks=ranks_of(union(one.ranks for _, one in known)),
                evidence=(_table([one for _, one in known]),),
                confidence="medium",
            )
        if strange := [one for one in found if one.known is None]:
            yield self.meta.finding(
                Status.INFO,
                f"{plural(sum(one.lines for one in strange), 'warning')} that dsprof does not "
                f"know, such as “{strange[0].text}”.",
                ranks=ranks_of(union(one.ranks for one in strange)),
                evidence=(_table(strange),),
            )


@cache
def _knowledge() -> tuple[_Known, ...]:
    return tuple(
        _Known(re.compile(row["pattern"]), Severity(row["severity"]), row["meaning"], row["action"])
        for row in rows("rules/knowledge/nccl_warnings.csv")
    )


def _table(warnings: list[_Warning]) -> Table:
    return Table(
        (Column("warning"), Column("lines", "count"), Column("ranks"), Column("means")),
        tuple(
            (one.text, one.lines, written_ranks(one.ranks), one.known.meaning if one.known else "")
            for one in warnings[:_ROWS]
        ),
    )
