"""Steps and spans of a trace as columns: a long run has too many for a loop."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dsprof.analysis.rank.remembered import remembered
from dsprof.trace.columns import BoolArray
from dsprof.trace.rank_trace import RankTrace

_Column = npt.NDArray[np.int64]


def int_column(records: Sequence[object], name: str) -> _Column:
    """Return a field of all records."""
    return np.fromiter(map(attrgetter(name), records), np.int64, len(records))


class StepColumns(NamedTuple):
    """The steps of a trace, in its order; a number can occur twice."""

    number: _Column
    start_ns: _Column
    end_ns: _Column
    micro_steps: _Column

    def rows_of(self, numbers: _Column) -> _Column:
        """Return the last row of each of these numbers, which all occur."""
        if np.array_equal(self.number, numbers):
            return np.arange(len(numbers))
        order = np.argsort(self.number, kind="stable")
        return order[np.searchsorted(self.number[order], numbers, side="right") - 1]


class SpanColumns(NamedTuple):
    """The spans of a trace, in its order."""

    names: list[str]
    name: _Column  # place in `names`, which are in the order of their first span
    step: _Column
    start_ns: _Column
    end_ns: _Column
    engine: _Column
    is_annotation: BoolArray

    def named(self, name: str) -> BoolArray:
        """Say which spans have a name."""
        place = self.names.index(name) if name in self.names else -1
        return np.asarray(self.name == place, np.bool_)


@remembered
def step_columns(trace: RankTrace) -> StepColumns:
    """Return the steps of a trace."""
    names = ("step", "start_ns", "end_ns", "micro_steps")
    return StepColumns(*(int_column(trace.steps, name) for name in names))


@remembered
def span_columns(trace: RankTrace) -> SpanColumns:
    """Return phases and annotated spans of a trace."""
    spans = trace.spans
    names = [span.name for span in spans]
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return SpanColumns(
        names=list(places),
        name=np.fromiter(map(places.__getitem__, names), np.int64, len(names)),
        step=int_column(spans, "step"),
        start_ns=int_column(spans, "start_ns"),
        end_ns=int_column(spans, "end_ns"),
        engine=int_column(spans, "engine"),
        is_annotation=int_column(spans, "is_annotation").astype(np.bool_),
    )
