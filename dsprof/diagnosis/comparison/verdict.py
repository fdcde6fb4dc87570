"""The first lines of a comparison: one for the time, one sentence for the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from dsprof.diagnosis.comparison.model import Comparison, OperationChange, TimeChange
from dsprof.diagnosis.comparison.noise import CONFIDENCE
from dsprof.findings import formatting as fmt
from dsprof.findings.wording import capitalised, count, percent, size


def verdict(comparison: Comparison) -> str:
    """Say in one line whether a step has become faster."""
    total = next((one for one in comparison.times if one.part == "total"), None)
    if comparison.unlike:
        line = f"Not comparable ({', '.join(comparison.unlike)})"
        return f"{line}: {_steps(total)}" if total else line
    if total is None or not total.before_ns or total.after_ns is None:
        return "Step times not compared: steps were not recorded in both runs"
    if total.low_ns is None or total.high_ns is None:
        return f"Step times not compared: {total.why}"
    interval = fmt.one_unit(_signed(total.low_ns), " to ", _signed(total.high_ns))
    match total.judgement:
        case "faster" | "slower":
            change = f"{percent(abs(total.after_ns / total.before_ns - 1))} {total.judgement}"
            nearest, farthest = sorted((abs(total.low_ns), abs(total.high_ns)))
            interval = fmt.one_unit(fmt.duration(nearest), "\N{EN DASH}", fmt.duration(farthest))
        case "same":
            change = "As fast as before"
        case _:
            hidden = fmt.duration((total.high_ns - total.low_ns) / 2)
            more = f"Record more steps: a change below {hidden} does not show"
            return f"Within the noise: {_steps(total)}. {more}{_means(total)}"
    return f"{change}: {_steps(total)} ({CONFIDENCE} interval {interval}){_means(total)}"


def _means(total: TimeChange) -> str:
    """Give the means where these change otherwise than the medians: few steps take far longer."""
    before_ns, after_ns = total.before_mean_ns or 0.0, total.after_mean_ns or 0.0
    low_ns, high_ns = total.low_ns or 0.0, total.high_ns or 0.0
    apart = after_ns - before_ns - ((total.after_ns or 0.0) - (total.before_ns or 0.0))
    is_noise = low_ns <= after_ns - before_ns <= high_ns
    if is_noise or abs(apart) < _APART * (total.before_ns or 0.0):
        return ""
    means = fmt.one_unit(fmt.duration(before_ns), " → ", fmt.duration(after_ns))
    longer = "more" if apart > 0 else "less"
    return f". The mean is {means}: outliers among the steps take {longer} time"


def _steps(total: TimeChange) -> str:
    times = fmt.one_unit(fmt.duration(total.before_ns), " → ", fmt.duration(total.after_ns))
    return f"{times} per step"


def _signed(ns: float) -> str:
    return ("+" if ns > 0 else "\N{MINUS SIGN}" if ns < 0 else "") + fmt.duration(abs(ns))


def summary(comparison: Comparison, settings: Sequence[str]) -> str:
    """Sum up the rest: traffic, findings, and what was set differently.

    `settings` names what was compared; arguments of DDP and FSDP are not.
    """
    clauses = "; ".join(
        (_traffic(comparison), *_findings(comparison), _settings(comparison, settings))
    )
    return f"{capitalised(clauses)}."


_APART = 0.1
"""Means are given, too, if they change by so much more or less than medians, beyond the noise."""
_ROUNDING = 1e-9
"""A smaller relative difference of two sums of means comes from rounding."""


def _traffic(comparison: Comparison) -> str:
    operations = comparison.operations
    if comparison.traffic_not_compared:
        return f"calls and bytes not compared: {comparison.traffic_not_compared}"
    if not operations:
        return "no collective was recorded in either"
    if not any(one.is_changed for one in operations):
        is_known = all(map(has_known_bytes, operations))
        return "the same calls and bytes" if is_known else "the same calls; not all bytes are known"
    changed = [one for one in operations if one.is_changed]
    once, byte = _least_changes(comparison)
    calls = _more([(one.before_calls, one.after_calls) for one in changed], _calls, once)
    nbytes = _more([(one.before_bytes, one.after_bytes) for one in changed], _bytes, byte)
    each = "per rank and step" if comparison.before.measured_steps else "per rank"
    if not (calls or nbytes):
        return f"other operations, with the same number of calls and bytes {each}"
    return (
        f"{calls or 'the same number of calls'} and {nbytes or 'the same number of bytes'} {each}"
    )


def _least_changes(comparison: Comparison) -> tuple[float, float]:
    """Return which changes of calls and of bytes are less than one call of a run and one byte.

    What a run sends once is another share of a step where runs have other numbers of steps.
    """
    steps = comparison.before.measured_steps, comparison.after.measured_steps
    return (1 / max(min(steps), 1), 1.0) if steps[0] != steps[1] else (0.0, 0.0)


def has_known_bytes(change: OperationChange) -> bool:
    """Whether the bytes of an operation can be compared."""
    return change.before_bytes is not None and change.after_bytes is not None


def _more(
    pairs: list[tuple[float | None, float | None]],
    words: Callable[[float | None], str],
    least: float,
) -> str:
    """Say how much the sum has changed; "" if it has not, or by less than `least`."""
    known = [(before, after) for before, after in pairs if before is not None and after is not None]
    if len(known) < len(pairs):
        return words(None)
    before, after = (sum(values) for values in zip(*known, strict=True))
    if math.isclose(before, after, rel_tol=_ROUNDING) or abs(after - before) < least:
        return ""
    is_small = not before or abs(after / before - 1) < 0.001
    share = "" if is_small else f" ({percent(after / before - 1, sign='+')})"
    return f"{words(after - before)}{share}"


def _calls(more: float | None) -> str:
    if more is None:
        return "an unknown number of calls"
    noun = "call" if abs(more) == 1 else "calls"
    return f"{count(abs(more))} {'more' if more > 0 else 'fewer'} {noun}"


def _bytes(more: float | None) -> str:
    if more is None:
        return "an unknown number of bytes"
    return f"{size(abs(more))} {'more' if more > 0 else 'less'}"


def _findings(comparison: Comparison) -> Iterator[str]:
    fates = [one.fate for one in comparison.findings]
    told = [f"{fates.count(fate)} {fate}" for fate in dict.fromkeys(fates)]
    if told:
        yield f"findings: {', '.join(told)}"


def _settings(comparison: Comparison, compared: Sequence[str]) -> str:
    if comparison.unrecorded:
        runs = " and ".join(comparison.unrecorded)
        return f"settings not compared: not recorded {runs}"
    parts = (
        ("in the configuration", comparison.configuration),
        ("in the environment", comparison.environment),
        ("in versions", comparison.versions),
    )
    told = [f"{len(changes)} {where}" for where, changes in parts if changes]
    if told:
        return f"changed settings: {', '.join(told)}"
    *first, last = compared
    return f"{', '.join(first)} and {last} are the same" if first else f"{last} is the same"
