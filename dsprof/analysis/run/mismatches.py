"""Collectives that ranks of a trace called in different ways, each as the same number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from dsprof.analysis.aggregates.arrivals import FAMILIES
from dsprof.analysis.alignment.matching import Matched
from dsprof.analysis.run.flight_recorders import Mismatch, by_value, odd_ranks
from dsprof.trace.columns import BoolArray

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
