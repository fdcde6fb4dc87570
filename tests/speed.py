"""CPU time in units of the machine: some are five times as slow as others, or shared."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_most(units: float) -> Iterator[None]:
    """Fail if what is inside takes more CPU time than so many units, for growth without bound.

    A unit is a fixed loop of Python, which takes 0.1 s on a fast processor. Before and after what
    is inside it is measured anew: another process may share the core.
    """
    before_s = _unit_s()
    begun_s = time.process_time()
    yield
    spent_s = time.process_time() - begun_s
    assert spent_s / max(before_s, _unit_s()) < units


def _unit_s() -> float:
    begun_s = time.process_time()
    total = 0
    for number in range(1_500_000):
        total += number & 7
    return time.process_time() - begun_s
