"""A baseline as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from dsprof.analysis.baseline import Baseline, OpCost
from dsprof.analysis.collectives import busbw_factor
from dsprof.findings import formatting as fmt
from dsprof.findings.wording import percent

_HEAD = f"{'operation':15}{'group':>6}{'ranks':>7}{'latency':>11}{'largest':>11}{'busbw':>12}"


def described(baseline: Baseline) -> str:
    """Return a line for each operation and group, of several nodes the slowest, and of hiding."""
    return "\n".join(_lines(baseline))


def _lines(baseline: Baseline) -> Iterator[str]:
    yield _HEAD
    slowest: dict[tuple[str, int, bool, str], OpCost] = {}
    for cost in baseline.costs:
        kind = (cost.group, cost.group_size, cost.crosses_nodes, cost.op)
        slowest[kind] = max(slowest.get(kind, cost), cost, key=lambda one: one.samples[-1].time_ns)
    yield from map(_line, slowest.values())
    for op, why in baseline.unsupported.items():
        yield f"{op}: not measured: {why}"
    if baseline.products:
        width = baseline.products[0].width
        yield f"\nMatrix products of {width} x {width}, one rank while all multiply:"
        for one in baseline.products:
            yield f"{one.precision:15}{one.flops_per_s / 1e9:>13,.1f} GFLOP/s"
    if (hiding := baseline.hiding) is not None:
        yield (
            f"\nCompute of {fmt.duration(hiding.compute_ns)} and a collective of "
            f"{fmt.duration(hiding.collective_ns)} take {fmt.duration(hiding.both_ns)} together:\n"
            f"{percent(hiding.low)} to {percent(hiding.high)} of the time that overlap saves is "
            "lost to slower computation."
        )
        if hiding.high > 1:
            yield (
                "A loss above 100 % means that other programs disturbed the measurement. Repeat it."
            )


def _line(cost: OpCost) -> str:
    # A single size does not separate latency from bytes.
    latency = fmt.duration(cost.latency_ns) if len(cost.samples) > 1 else "-"
    last, factor = cost.samples[-1], busbw_factor(cost.op, cost.group_size)
    if factor is None or not last.nbytes:
        return f"{cost.op:15}{cost.group:>6}{cost.group_size:>7}{fmt.duration(last.time_ns):>11}"
    busbw = fmt.rate(last.nbytes * factor / max(last.time_ns, 1) * 1e9)
    start = f"{cost.op:15}{cost.group:>6}{cost.group_size:>7}{latency:>11}"
    return f"{start}{fmt.size(last.nbytes):>11}{busbw:>12}"
