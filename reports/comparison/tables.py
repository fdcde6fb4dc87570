"""Tables of a comparison as typed data, for the page and the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dsprof.diagnosis.comparison.model import (
    Change,
    Comparison,
    FindingChange,
    KindChange,
    OperationChange,
    TimeChange,
)
from dsprof.diagnosis.comparison.noise import CONFIDENCE
from dsprof.diagnosis.comparison.verdict import has_known_bytes
from dsprof.findings import formatting as fmt
from dsprof.findings.finding import Column, ColumnKind, Table
from dsprof.reports.content import PARTS
from dsprof.reports.tables.listing import Shown, bounded, listing
from dsprof.trace.schema import ROLES

_OF_A_STEP = "Per rank and step, on average"
_OF_A_RECORD = "Per rank over the whole record, on average"


def sections(comparison: Comparison, *, is_brief: bool = False) -> Iterator[tuple[str, Table]]:
    """Yield what changed, part by part with its heading; nothing of what neither run has.

    In brief, kinds of collectives that did not change are left out, and so are their speeds.
    """
    caption = _OF_A_STEP if comparison.before.measured_steps else _OF_A_RECORD
    if comparison.times:
        yield "Times", listing(_how_judged(comparison.times), _TIME, comparison.times)
    if comparison.operations:
        yield "Operations and bytes", operations(comparison.operations, caption)
    detailed = [one for one in comparison.kinds if one.is_changed or not is_brief]
    if detailed:
        yield "Operations in detail", kinds(detailed, caption, has_speeds=not is_brief)
    if comparison.findings:
        yield "Findings", findings(comparison.findings)
    for heading, noun, changes in (
        ("Configuration", "Key", comparison.configuration),
        ("Environment", "Variable or limit", comparison.environment),
        ("Versions", "Library", comparison.versions),
    ):
        if changes:
            yield heading, settings(changes, noun)


_JUDGEMENTS = {"inconclusive": "within the noise"}
_TIME: tuple[Shown[TimeChange], ...] = (
    Shown("Part of the step", lambda one: PARTS.get(one.part, "whole step")),
    Shown("Before", lambda one: one.before_ns, "ns"),
    Shown("After", lambda one: one.after_ns, "ns"),
    Shown("Difference", lambda one: _interval(one)),
    Shown("Verdict", lambda one: _JUDGEMENTS.get(one.judgement, one.judgement)),
)
"""The median of each part of a step, and where the difference lies."""


def _how_judged(changes: Iterable[TimeChange]) -> str:
    caption = f"Median of each part; ranges of differences at {CONFIDENCE} confidence"
    reasons = dict.fromkeys(one.why for one in changes if one.why)
    return caption + "".join(f". Not compared: {reason}" for reason in reasons)


def operations(changes: Iterable[OperationChange], caption: str) -> Table:
    """All operations: calls and bytes are exact, times are not judged."""
    columns = (*map(Column, ("Operation", "Calls", "Bytes", "Exposed")), Column("Calls and bytes"))
    rows = [(one.op, *_numbers(one), _judged(one)) for one in changes]
    return Table(columns, tuple(rows), caption)


def _judged(one: OperationChange) -> str:
    if one.is_changed:
        return "changed"
    return "same" if has_known_bytes(one) else "same calls, bytes unknown"


def kinds(changes: Sequence[KindChange], caption: str, *, has_speeds: bool = True) -> Table:
    """Collectives by kind, those that changed first."""
    labels = ("Collectives", "Calls", "Bytes", "Exposed", *(("busbw",) if has_speeds else ()))
    rows = [
        (_kind(one), *_numbers(one), *((_speeds(one),) if has_speeds else ())) for one in changes
    ]
    return bounded(Table(tuple(map(Column, labels)), tuple(rows), caption))


def findings(changes: Iterable[FindingChange]) -> Table:
    """The fate of the findings."""
    columns = tuple(map(Column, ("Finding", "Rule", "Before", "After", "Summary")))
    rows = (
        (one.fate, one.rule, one.before or "not run", one.after or "not run", one.summary)
        for one in changes
    )
    return Table(columns, tuple(rows))


def settings(changes: Iterable[Change], noun: str) -> Table:
    """Settings and their values."""
    values = ((one.name, one.before, one.after) for one in changes)
    rows = (tuple("not set" if one is None else one for one in row) for row in values)
    return Table(tuple(map(Column, (noun, "Before", "After"))), tuple(rows))


def _kind(one: KindChange) -> str:
    mode = "async" if one.is_async else "sync"
    is_whole = one.group == "all ranks"
    ranks = fmt.plural(one.group_size, "rank") if one.group_size else "group of unknown size"
    words = (
        "" if is_whole else ROLES.get(one.group, one.group),
        f"{'all ' if is_whole else ''}{ranks}",
        one.phase,
        one.size_class,
        one.dtype,
        mode if one.on_wire else f"{mode}, outside c10d",
    )
    return f"{one.op} ({', '.join(word for word in words if word)})"


def _numbers(one: OperationChange) -> tuple[str, str, str]:
    is_in_bytes = one.is_changed and one.before_calls == one.after_calls
    return (
        _pair(one.before_calls, one.after_calls, "count", in_full=one.is_changed),
        _pair(one.before_bytes, one.after_bytes, "bytes", in_full=is_in_bytes),
        _where_issued(one, one.before_exposed_ns, one.after_exposed_ns, "ns"),
    )


def _speeds(one: KindChange) -> str:
    return _where_issued(one, one.before_busbw, one.after_busbw, "rate")


def _where_issued(
    one: OperationChange, before: float | None, after: float | None, kind: ColumnKind
) -> str:
    """Show what is measured of calls, where there are any."""
    first = fmt.cell(before, kind) if one.before_calls else fmt.NOTHING
    second = fmt.cell(after, kind) if one.after_calls else fmt.NOTHING
    return _arrow(first, second)


def _pair(before: float | None, after: float | None, kind: ColumnKind, *, in_full: bool) -> str:
    """Show a change, `in_full` also where rounding would hide it."""
    first, second = fmt.cell(before, kind), fmt.cell(after, kind)
    if in_full and first == second and before != after:
        first, second = f"{before:,.12g}", f"{after:,.12g}"
    return _arrow(first, second)


def _arrow(first: str, second: str) -> str:
    return first if first == second else f"{first} \N{RIGHTWARDS ARROW} {second}"


def _interval(one: TimeChange) -> str:
    if one.low_ns is None or one.high_ns is None:
        return ""
    low, high = (
        ("+" if ns > 0 else "\N{MINUS SIGN}" if ns < 0 else "") + fmt.duration(abs(ns))
        for ns in (one.low_ns, one.high_ns)
    )
    return f"{low} to {high}"
