"""The traffic that DDP and FSDP ask for, from how they lay out a model: buckets and units.

Neither has a configuration that is written down. Their layout says what one reduction carries; how
often a step reduces is the program's choice (`no_sync`), so it is taken as recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dsprof.analysis.rank.intent import Demand, Expected, Kind, Span
from dsprof.trace.schema import BucketLayout, Fetch, Flush

_PADDING = 0.1
"""FSDP2 fills the first dimension of each parameter up to equal shares: how much is not known."""


class Sharing(NamedTuple):
    """Multipliers of the traffic of FSDP's units, all steps together."""

    reductions: int
    micro_steps: int
    ranks: int  # that share the gradients of a unit
    replica_reductions: int  # in which shards were all-reduced among groups of such ranks
    gradient_bytes: float  # of an element on the wire: mixed precision decides
    parameter_bytes: float


def demands_of_ddp(
    layouts: Iterable[BucketLayout], reductions: int
) -> Iterator[tuple[Demand, Expected]]:
    """Yield what the models of one rank ask for: a reduction sends all buckets of one or more."""
    latest = {layout.model: layout.nbytes for layout in layouts}.values()
    if reductions and latest:
        calls, nbytes = ([of(model) for model in latest] for of in (len, sum))
        demand = Demand("gradients", ("all_reduce",), "DDP, every bucket in each reduction")
        yield demand, Expected(_of_models(calls, reductions), _of_models(nbytes, reductions))


def _of_models(amounts: list[int], times: int) -> Span:
    """Return from the least of one model to those of all: a GAN trains them in turn."""
    return Span(times * min(amounts), times * sum(amounts))


def demands_of_fsdp(
    flushes: Iterable[Flush], fetches: Iterable[Fetch], sharing: Sharing
) -> Iterator[tuple[Demand, Expected]]:
    """Yield what the units of one rank ask for: one reduction of each, one or two all-gathers."""
    elements, parameters = _units(flushes)
    padded = round(elements * (1 + _PADDING)) + sharing.ranks * parameters
    # FSDP2 may all-reduce only in the last micro-step: set_requires_all_reduce
    times = sharing.reductions + sharing.replica_reductions / max(sharing.ranks, 1)
    low, high = (round(n * times * sharing.gradient_bytes) for n in (elements, padded))
    families = ("reduce_scatter", "all_reduce")
    yield from _asked("gradients", families, "FSDP, every unit in each reduction", low, high)
    elements, _ = _units(fetch for fetch in fetches if fetch.kind != "release")
    once = elements * sharing.micro_steps * sharing.parameter_bytes
    why = "FSDP, every unit in forward, and in backward if it was resharded"
    low, high = round(once), round(2 * (1 + _PADDING) * once)
    yield from _asked("parameters", ("all_gather",), why, low, high)


def _asked(
    kind: Kind, families: tuple[str, ...], why: str, low: int, high: int
) -> Iterator[tuple[Demand, Expected]]:
    if low:
        yield Demand(kind, families, why), Expected(None, Span(low, high))


def _units(records: Iterable[Flush | Fetch]) -> tuple[int, int]:
    """Return elements and parameters of the modules that FSDP treats as one.

    FSDP2 names them in the first forward: what is unsharded before has no name, and is one of them.
    """
    units = {
        (one.module, one.elements): getattr(one, "parameters", 0)
        for one in records
        if one.library.startswith("FSDP")
    }
    named = {unit: parameters for unit, parameters in units.items() if unit[0]} or units
    return sum(elements for _, elements in named), sum(named.values())
