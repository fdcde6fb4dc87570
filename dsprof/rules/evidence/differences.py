"""In what ranks differ that should be alike: a sentence, a table, and the ranks that stand out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dsprof.analysis.rank_sets import RankSet, named_ranks, ranks_of, standing_out, written_ranks
from dsprof.findings.finding import Column, Severity, Table
from dsprof.findings.wording import plural, shortened

Values = Mapping[str, RankSet]
"""Value -> the ranks that have it."""

_MOST_VALUES = 4  # in a sentence
_ROWS = 64


class Trait(NamedTuple):
    """Something in which ranks should be alike."""

    name: str
    of: Callable[[Any], Values]  # of the facts of a run; ranks that say nothing of it are left out
    severity: Severity  # NONE: worth knowing
    effect: str
    amount: Callable[[str], int] | None = None  # what counts, if less is worse
    acts_on: str = "any"  # "any" run, an "nccl" run, or one over "tcp" or RoCE
    may_differ: bool = False  # by a share


class Difference(NamedTuple):
    """A trait in which ranks are not alike."""

    trait: Trait
    values: Values

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those with the least amount; without amounts, those with the rarest value."""
        return ranks_of(standing_out(self.values, self.trait.amount))


def summary(found: Sequence[Difference]) -> str:
    """Say how the first differs, and count the others."""
    first, *others = found
    shown = [f"{shortened(v)} on {named_ranks(r)}" for v, r in sorted(first.values.items())]
    if (left := len(shown) - _MOST_VALUES) > 0:
        shown[_MOST_VALUES:] = [f"and {plural(left, 'more value')}"]
    more = f", and {plural(len(others), 'more difference')}" if others else ""
    return f"The {first.trait.name} differs: {'; '.join(shown)}{more}."


def table(found: Sequence[Difference]) -> Table:
    """List each value and its ranks."""
    columns = (Column("of"), Column("value"), Column("ranks"), Column("effect"))
    rows = (
        (one.trait.name, value, written_ranks(ranks), one.trait.effect)
        for one in found
        for value, ranks in sorted(one.values.items())
    )
    return Table(columns, tuple(rows)[:_ROWS])
