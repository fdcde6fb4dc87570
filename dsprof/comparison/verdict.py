"""The sentence that a comparison ends in."""

from __future__ import annotations

from collections.abc import Iterator

from dsprof.comparison.model import Comparison, OperationChange, TimeChange
from dsprof.findings.wording import percent


def verdict(comparison: Comparison, *, has_configuration: bool) -> str:
    """Sum a comparison up: kind, time, traffic, findings, and what was set differently.

    `has_configuration` says whether either run has one of DeepSpeed; arguments of DDP and FSDP are
    not compared.
    """
    clauses = "; ".join(
        (
            *_kind(comparison.unlike),
            _time(comparison.times),
            _traffic(comparison.operations),
            *_findings(comparison),
            _settings(comparison, has_configuration=has_configuration),
        )
    )
    return f"{clauses[0].upper()}{clauses[1:]}."


def _kind(unlike: list[str]) -> Iterator[str]:
    if unlike:
        yield f"the runs are not comparable ({', '.join(unlike)})"


def _time(times: list[TimeChange]) -> str:
    total = next((one for one in times if one.part == "total"), None)
    if total is None or total.before_ns is None or total.after_ns is None:
        return "times not compared: steps were not recorded in both runs"
    steps = f"{_ms(total.before_ns)} ms before, {_ms(total.after_ns)} ms after"
    low, high = total.low_ns or 0.0, total.high_ns or 0.0
    match total.judgement:
        case "slower":
            return f"the step is slower by {_ms(low)} to {_ms(high)} ms ({steps})"
        case "faster":
            return f"the step is faster by {_ms(-high)} to {_ms(-low)} ms ({steps})"
        case "same":
            return f"the step takes as long as before ({steps})"
        case "inconclusive":
            return f"any change of the step is within the noise ({steps})"
    return f"step times not compared ({steps})"


def _traffic(operations: list[OperationChange]) -> str:
    if not operations:
        return "no collective was recorded in either"
    if not any(one.is_changed for one in operations):
        return "the same calls and bytes"
    calls = _more([(one.before_calls, one.after_calls) for one in operations])
    nbytes = _more([(one.before_bytes, one.after_bytes) for one in operations])
    return f"{calls} calls and {nbytes} bytes in a rank's step"


def _more(pairs: list[tuple[float | None, float | None]]) -> str:
    """Say how much the sum has changed."""
    known = [(before, after) for before, after in pairs if before is not None and after is not None]
    if len(known) < len(pairs):
        return "an unknown number of"
    before, after = (sum(values) for values in zip(*known, strict=True))
    if before == after:
        return f"{before:,.6g} (unchanged)"
    word = "more" if after > before else "fewer"
    share = (
        f" ({percent(after / before - 1, sign='+')})"
        if before and abs(after / before - 1) >= 0.001
        else ""
    )
    return f"{abs(after - before):,.12g} {word}{share}"


def _findings(comparison: Comparison) -> Iterator[str]:
    fates = [one.fate for one in comparison.findings]
    told = [f"{fates.count(fate)} {fate}" for fate in dict.fromkeys(fates)]
    if told:
        yield f"findings: {', '.join(told)}"


def _settings(comparison: Comparison, *, has_configuration: bool) -> str:
    if comparison.unrecorded:
        runs = " and ".join(comparison.unrecorded)
        return f"settings not compared: not recorded {runs}"
    parts = (
        ("in the configuration", comparison.configuration),
        ("in the environment", comparison.environment),
        ("in versions", comparison.versions),
    )
    told = [f"{len(changes)} {where}" for where, changes in parts if changes]
    alike = "configuration, environment" if has_configuration else "environment"
    return f"changed settings: {', '.join(told)}" if told else f"{alike} and versions are the same"


def _ms(ns: float) -> str:
    decimals = 0 if abs(ns) >= 1e8 else 1 if abs(ns) >= 1e7 else 2
    return f"{ns / 1e6:,.{decimals}f}"
