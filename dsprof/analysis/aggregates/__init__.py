"""The aggregates of a run: the one that each module here defines."""

from __future__ import annotations

from dsprof.analysis.summary import Aggregate
from dsprof.plugins.parts import modules_in

AGGREGATES: tuple[type[Aggregate], ...] = tuple(
    kind
    for module in modules_in(__name__)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Aggregate) and kind.__module__ == module.__name__
)
