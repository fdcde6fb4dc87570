"""mismatched-collective: ranks of a group call different things, each for the same collective."""

from __future__ import annotations

from collections.abc import Iterable

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.run.endings import find_hang
from dsprof.analysis.run.flight_recorders import Mismatch, mismatches
from dsprof.analysis.run.mismatches import disagreements
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import named
from dsprof.rules.knowledge.stage3 import LEAF_MODULES
from dsprof.rules.rule import NoThresholds, Rule, RuleMeta


class MismatchedCollective:
    """Compares operation, size and type of the n-th collective of a group on every rank."""

    meta = RuleMeta(
        id="mismatched-collective",
        title="All ranks called the same collectives",
        failing_title="Ranks call different collectives at the same time",
        why="Ranks that call different collectives hang, crash, or continue with wrong values.",
        category="communication",
        order=90,
        needs=(Arrivals, FlightRecorders, Endings),
    )
    thresholds = NoThresholds()

    def check(self, run: RunSummary, thresholds: NoThresholds) -> Iterable[Finding]:
        """Report the first mismatch of each group."""
        flights = run[FlightRecorders]
        if not flights.ranks:
            yield from self._in_traces(run[Arrivals], run[Endings])
        elif len(flights.ranks) == 1:
            text = "Unknown: only one rank was dumped. Give the dumps of all ranks."
            yield self.meta.finding(Status.UNKNOWN, text)
        else:
            for found in mismatches(flights):
                yield self._finding(found)

    def _in_traces(self, arrivals: Arrivals, endings: Endings) -> Iterable[Finding]:
        seen, hung = disagreements(arrivals.matched), find_hang(endings).mismatched
        if not (seen.compared or hung):
            text = "No flight recorder was dumped, and no collective was matched across ranks."
            yield self.meta.finding(Status.NOT_APPLICABLE, text)
        elif seen.unplaced:
            text = f"Unknown: the numbering of {', '.join(seen.unplaced[:4])} is inconsistent."
            yield self.meta.finding(Status.UNKNOWN, text)
        ended = {found.label for found in seen.found}
        for found in (*seen.found, *(one for one in hung if one.label not in ended)):
            yield self._finding(found)

    def _finding(self, found: Mismatch) -> Finding:
        told = "; ".join(
            f"{value or 'none'} on {named(ranks)}" for value, ranks in found.values[:4]
        )
        return self.meta.finding(
            Status.FAIL,
            f"Collective number {found.seq:,} of {found.label} differs in {found.what}: {told}.",
            severity=Severity.CRITICAL,
            cause="The ranks took different branches: a condition on the rank, on data or on a "
            "loss, or batches of different shapes."
            + (" ZeRO-3 issued it: ranks run different modules." if found.is_of_zero3 else ""),
            action="Compare the call sites, and make all ranks take the same branch."
            + (f" {LEAF_MODULES}" if found.is_of_zero3 else ""),
            ranks=found.odd,
            evidence=(_table(found),),
            confidence="high",
        )


def _table(found: Mismatch) -> Table:
    return Table(
        columns=(Column(found.what), Column("on"), Column("called from")),
        rows=tuple(
            (value, named(ranks), next((found.frames[r] for r in ranks if r in found.frames), ""))
            for value, ranks in found.values
        ),
        caption=f"{found.label} ({found.name}), number {found.seq:,}",
    )


RULE: Rule = MismatchedCollective()
