"""The aggregates of a run: the one that each module here defines."""

from __future__ import annotations

from dsprof.analysis.summary import Aggregate
from dsprof.plugins.parts import classes_in

AGGREGATES: tuple[type[Aggregate], ...] = tuple(
    kind for kind in classes_in(__name__) if issubclass(kind, Aggregate)
)
