"""mismatched-collective: ranks of a group call different things, each for the same collective."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsprof.analysis.aggregates.arrivals import FAMILIES, Arrivals
from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.aggregates.shared_groups import SharedGroups
from dsprof.analysis.alignment.matching import Matched
from dsprof.analysis.hang.flight_recorders import Mismatch, by_value, odd_ranks
from dsprof.analysis.hang.verdict import hang_of
from dsprof.analysis.hang.words import apart, branches, difference
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import named, some
from dsprof.rules.evidence.hang_remedies import same_call
from dsprof.rules.reasons import ONE_DUMP
from dsprof.rules.rule import NoThresholds, Rule, RuleMeta
from dsprof.trace.columns import BoolArray


class MismatchedCollective(Rule):
    """Compares operation, size and type of the n-th collective of a group on every rank."""

    meta = RuleMeta(
        id="mismatched-collective",
        title="All ranks called the same collectives",
        failing_title="Ranks call different collectives at the same time",
        why="Ranks that call different collectives hang, crash, or continue with wrong values.",
        category="communication",
        order=90,
        needs=(Arrivals, Endings, FlightRecorders, SharedGroups),
    )

    def check(self, run: RunSummary, thresholds: NoThresholds) -> Iterable[Finding]:
        """Report the first mismatch of each group."""
        flights = run[FlightRecorders]
        hang = hang_of(run[Endings], flights, shared=run[SharedGroups].rows)
        hung = hang.mismatched
        if not flights.ranks:
            yield from self._in_traces(run[Arrivals], hung, run[SharedGroups])
        elif len(flights.ranks) == 1:
            yield self.meta.unknown(ONE_DUMP)
        elif hang.apart:
            yield self.meta.unknown(apart(hang.apart))
        else:
            for found in hung:
                yield self._finding(found)

    def _in_traces(
        self, arrivals: Arrivals, hung: Sequence[Mismatch], shared: SharedGroups
    ) -> Iterable[Finding]:
        seen = disagreements(arrivals.matched)
        if not (seen.compared or hung):
            yield self.meta.not_applicable(
                "No flight recorder was dumped, and no collective was matched across ranks."
            )
        elif seen.unplaced:
            yield self.meta.unknown(
                f"Unknown: the numbering of {some(seen.unplaced, 4)} is inconsistent."
            )
        ended = {found.label for found in seen.found}
        for found in (*seen.found, *(one for one in hung if one.label not in ended)):
            yield self._finding(replace(found, is_of_threads=found.label in shared.rows))

    def _finding(self, found: Mismatch) -> Finding:
        return self.meta.finding(
            Status.FAIL,
            difference(found),
            severity=Severity.CRITICAL,
            cause=branches(found),
            action=same_call(found),
            ranks=found.odd,
            evidence=(_table(found),),
            confidence="high" if found.is_sure else "medium",
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


_EQUAL_SIZES = FAMILIES.index("all_reduce")  # the others may be uneven
_MOST_WRONG = 0.1
"""Where more disagree, it is the numbers that were matched wrongly."""


@dataclass(frozen=True, slots=True)
class Disagreements:
    """The first of each group, how many collectives were compared, and groups that fit nowhere."""

    found: tuple[Mismatch, ...]
    compared: int
    unplaced: tuple[str, ...]


def disagreements(matched: Iterable[Matched]) -> Disagreements:
    """Compare operations of all collectives, and sizes of all-reduces."""
    found: list[Mismatch] = []
    unplaced: list[str] = []
    compared = 0
    for one in matched:
        wrong = _wrong(one)
        compared += len(wrong)
        if wrong.mean() > _MOST_WRONG and len(wrong) > 1:
            unplaced.append(one.group.label)
        elif wrong.any():
            found += _first(one, int(np.argmax(wrong)))
    return Disagreements(tuple(found), compared, tuple(unplaced))


def _wrong(one: Matched) -> BoolArray:
    sized = (one.op == _EQUAL_SIZES).all(axis=0) & (one.nbytes > 0).all(axis=0)
    uneven = sized & (one.nbytes != one.nbytes[:1]).any(axis=0)
    return np.asarray(~one.agrees | uneven, np.bool_)


def _first(one: Matched, place: int) -> Iterator[Mismatch]:
    ops = {rank: FAMILIES[code] for rank, code in zip(one.ranks, one.op[:, place], strict=True)}
    sizes = {r: f"{int(n):,} bytes" for r, n in zip(one.ranks, one.nbytes[:, place], strict=True)}
    what, values = ("operation", ops) if len(set(ops.values())) > 1 else ("size", sizes)
    told = by_value(values)
    label, number = one.group.label, int(one.seq[place])
    yield Mismatch(label, label, number, what, told, odd_ranks(told), {})
