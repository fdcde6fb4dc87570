"""The sentences that a comparison ends in."""

from __future__ import annotations

from collections.abc import Iterator

from dsprof.comparison.model import Comparison, OperationChange, TimeChange


def verdict(comparison: Comparison) -> str:
    """Sum a comparison up: kind, time, traffic, findings, and what else changed."""
    return " ".join(
        (
            *_kind(comparison.unlike),
            _time(comparison.times),
            _traffic(comparison.operations),
            *_findings(comparison),
            *_settings(comparison),
        )
    )


def _kind(unlike: list[str]) -> Iterator[str]:
    if unlike:
        yield f"The runs are not of one kind ({'; '.join(unlike)})."


def _time(times: list[TimeChange]) -> str:
    total = next((one for one in times if one.part == "total"), None)
    if total is None or total.before_ns is None or total.after_ns is None:
        return "Steps were not recorded in both, so no time is compared."
    was, now = _ms(total.before_ns), _ms(total.after_ns)
    steps = f"{was} ms before, {now} ms after"
    if total.low_ns is None or total.high_ns is None:
        return f"Step times are not judged, for {total.why}: {steps}."
    reach = f"{_signed(total.low_ns)} to {_signed(total.high_ns)} ms, 99 % confidence"
    match total.judgement:
        case "faster" | "slower":
            return f"The step is {total.judgement}: {steps} ({reach})."
        case "same":
            return f"The step takes as long as before: {steps} ({reach})."
    return f"The noise hides any change of the step: {steps} ({reach})."


def _traffic(operations: list[OperationChange]) -> str:
    if not operations:
        return "No collective was recorded in either."
    changed = [one for one in operations if one.is_changed]
    if not changed:
        return "Each rank issues the same operations and bytes."
    names = ", ".join(one.op for one in changed[:3]) + (" and others" if len(changed) > 3 else "")
    calls = _sums([(one.before_calls, one.after_calls) for one in operations])
    nbytes = _sums([(one.before_bytes, one.after_bytes) for one in operations])
    return f"Of each rank's step, calls: {calls}; bytes: {nbytes}; in {names}."


def _sums(pairs: list[tuple[float | None, float | None]]) -> str:
    known = [(before, after) for before, after in pairs if before is not None and after is not None]
    if len(known) < len(pairs):
        return "not known"
    before, after = (sum(values) for values in zip(*known, strict=True))
    if before == after:
        return f"{before:,.12g} as before"
    share = f" ({after / before - 1:+.1%})" if before else ""
    return f"{before:,.12g} before, {after:,.12g} after{share}"


def _findings(comparison: Comparison) -> Iterator[str]:
    fates = [one.fate for one in comparison.findings]
    told = [f"{fates.count(fate)} {fate}" for fate in dict.fromkeys(fates)]
    if told:
        yield f"Findings: {', '.join(told)}."


def _settings(comparison: Comparison) -> Iterator[str]:
    parts = (
        ("in the configuration", comparison.configuration),
        ("in the environment", comparison.environment),
        ("in versions", comparison.versions),
    )
    told = [f"{len(changes)} {where}" for where, changes in parts if changes]
    yield f"Set differently: {', '.join(told)}." if told else "Nothing was set differently."


def _ms(ns: float) -> str:
    return f"{ns / 1e6:,.{_decimals(ns)}f}"


def _signed(ns: float) -> str:
    return f"{ns / 1e6:+,.{_decimals(ns)}f}"


def _decimals(ns: float) -> int:
    return 0 if abs(ns) >= 1e8 else 1 if abs(ns) >= 1e7 else 2
