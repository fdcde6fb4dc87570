"""Savings in ms of a step: the one place where rules do this arithmetic.

A saving follows from the trace: what is exposed, what the change removes, what it adds. A range is
low and high, in ms of one step. Formulas and their measured accuracy: docs/background/savings.md.
"""

from __future__ import annotations

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.baseline import Sample, fitted
from dsprof.analysis.run.transfer_speed import transfers
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Range
from dsprof.trace.collectives import family

LEAST_DOUBT = 0.25
"""Every saving is uncertain by at least this share: a record is a sample, and the step after a
change is another one."""

MOST_DOUBT = 1 / 3
"""Above this uncertainty there is no saving: the upper end would be more than twice the lower."""

NOMINAL_NS_PER_BYTE = 2.0
"""All-reduce over 10 Gbit/s, about: what training is run over is rarely slower."""

_BACKWARD_SHARE = 0.5
"""This share of the time in which a step waits for nothing can hide reductions: backward computes
twice what forward does, and some of it comes before the first bucket."""

_MIB = 1 << 20
_LEAST_SPAN = 8
"""How many times larger the largest message must be than the smallest, to tell bytes from calls."""


def about(low_ms: float, high_ms: float | None = None) -> Range | None:
    """Return a range around an estimate, or around one that lies between two.

    None where there is nothing to save, or where the two are so far apart that it is not known.
    """
    high_ms = low_ms if high_ms is None else high_ms
    middle_ms = (low_ms + high_ms) / 2
    if middle_ms <= 0:
        return None
    doubt = (high_ms - low_ms) / 2 / middle_ms
    if doubt > MOST_DOUBT + 1e-9:
        return None
    doubt = max(doubt, LEAST_DOUBT)
    return middle_ms * (1 - doubt), middle_ms * (1 + doubt)


def is_hidden(blocked_ms: float, steps: Steps, share: float) -> bool:
    """Say whether calls are known to hold less than `share` of the mean measured step."""
    return steps.exposed_share is not None and blocked_ms * 1e6 < share * steps.mean_ns


def omitting_saves(own_ms: float | None, mean_ms: float | None, share: float = 1.0) -> Range | None:
    """Return what it saves to omit calls, or a share of them.

    They hold a step for `mean_ms`, the mean over ranks, of which `own_ms` are the calls' own: the
    rest is waiting for late ranks, which mostly moves to their next collective. Part of it may be
    gone as well, so the estimate lies between the two. A mean of more than twice the calls' own
    time is waiting, and nothing of that is promised.
    """
    if own_ms is None or mean_ms is None:
        return None
    is_late = mean_ms > 2 * own_ms
    return about(own_ms * share, (own_ms if is_late else max(mean_ms, own_ms)) * share)


def joining_saves(
    blocked_ms: float, calls: float, nbytes: float, needed: float, slope: Range
) -> Range | None:
    """Return what it saves to send the same bytes in fewer calls.

    `calls` a step block it for `blocked_ms` and carry `nbytes`; `needed` of them would do. Each
    call that is gone saves its latency. Its bytes still travel, at `slope` ns a byte (least, most).
    """
    if calls <= needed:
        return None
    spared = 1 - needed / calls
    least, most = (max(0.0, blocked_ms - nbytes * ns / 1e6) * spared for ns in reversed(slope))
    return about(least, most)


def halving_saves(blocked_ms: float, nbytes: float, slope: Range) -> Range | None:
    """Return what it saves to send half of `nbytes` in as many calls, which keep their latency.

    They block a step for `blocked_ms`, and a byte costs `slope` ns (least, most).
    """
    least, most = (min(blocked_ms, nbytes * ns / 1e6) / 2 for ns in slope)
    return about(least, most)


def hiding_saves(
    blocked_ms: float, behind_ms: float, parts: float, costs: BaselineCosts
) -> Range | None:
    """Return what it saves to run communication that holds a step `blocked_ms` behind computation.

    It travels in `parts`, of which the last (or the first) has nothing to hide behind, and
    `behind_ms` is what is computed meanwhile. A share of what is hidden comes back as slower
    computation: the contention of the machine.
    """
    hidden_ms = min(blocked_ms * (1 - 1 / max(parts, 1)), behind_ms)
    free, contended = costs.contention
    return about(hidden_ms * (1 - contended), hidden_ms * (1 - free))


def device_backward_ms(steps: Steps) -> float | None:
    """Return how long a device computes in the backward of a step, about; None if not measured.

    The host's own backward is no measure: it runs ahead of the device, or waits for it.
    """
    if steps.total.exposed_ns is None:
        return None
    busy_ns = (steps.total.total_ns - steps.total.exposed_ns) / len(steps.measured)
    return busy_ns / 1e6 * _BACKWARD_SHARE


def faster_products_save(
    compute_ms: float, times: float, least_share: float, added_ms: float
) -> Range | None:
    """Return what it saves to multiply matrices `times` as fast in a step that computes so long.

    The record does not tell products from other computation. Where they will take at least
    `least_share` of it after the change, they take times as much now, beside the same rest.
    `added_ms` is what the change may cost at most: wider numbers on the wire.
    """
    products = least_share * times
    share = products / (products + 1 - least_share)
    most_ms = compute_ms * (1 - 1 / times)
    return about(max(0.0, most_ms * share - added_ms), most_ms)


def ns_per_byte(run: RunSummary, op: str, group_size: int) -> Range:
    """Return the bounds of what a byte costs in `op`, by the run's own transfers if they tell.

    Else by the baseline of the machine, else from nothing to `NOMINAL_NS_PER_BYTE`.
    """
    own = [
        Sample(one.nbytes, one.time_ns)
        for one in transfers(run[Arrivals], run[Steps].measured)
        if one.path.op == family(op) and one.path.group_size == group_size
    ]
    sizes = [sample.nbytes for sample in own]
    if len(own) > 1 and max(sizes) >= _LEAST_SPAN * min(sizes):
        _, slope = fitted(own)
        return slope, slope
    small, large = (run[BaselineCosts].cost_ns(op, nbytes, group_size) for nbytes in (0, _MIB))
    if small is None or large is None:
        return 0.0, NOMINAL_NS_PER_BYTE
    slope = max(0.0, large - small) / _MIB
    return slope, slope
