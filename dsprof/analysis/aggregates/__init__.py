"""The aggregates of a run: each module here that has an `AGGREGATE`."""

from __future__ import annotations

from dsprof.analysis.summary import Aggregate
from dsprof.plugins.parts import in_folder

AGGREGATES: tuple[type[Aggregate], ...] = tuple(in_folder(__name__, "AGGREGATE"))
