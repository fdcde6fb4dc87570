"""The sections of a diagnosis, each from the aggregates that hold its facts.

A module here says in `SECTIONS` which fields of `Diagnosis` its functions fill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from dsprof.analysis.summary import RunSummary
from dsprof.plugins.parts import in_folder


@cache
def sections() -> Mapping[str, Callable[[RunSummary], Any]]:
    """Return what fills each field of a diagnosis that follows from the summary only."""
    return {name: make for found in in_folder(__name__, "SECTIONS") for name, make in found.items()}
