"""Times of a profiler's events as columns."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from dsprof.trace.readers.kineto.events import TraceEvent

DAMAGED = -(2**62)
"""In place of a time that is none."""
_LONGEST_US = 1e13  # four months: later times are damage
_Floats = npt.NDArray[np.float64]
_START, _DURATION = attrgetter("ts"), attrgetter("dur")


def times_of(events: Sequence[TraceEvent], origin_us: float) -> npt.NDArray[np.int64]:
    """Return a row of starts and one of ends in ns, shape (2, events); DAMAGED where they are."""
    starts = np.fromiter(map(_START, events), np.float64, len(events))
    lasts = np.fromiter(map(_DURATION, events), np.float64, len(events))
    return on_grid(starts, lasts, origin_us)


def on_grid(starts: _Floats, lasts: _Floats, origin_us: float) -> npt.NDArray[np.int64]:
    """Return the same of starts and durations in microseconds."""
    # Added first: on the coarse grid of absolute times an end meets the start that it touches.
    times = np.stack([starts, starts + np.fmax(lasts, 0.0)]) - origin_us
    is_sound = (np.abs(times) < _LONGEST_US).all(axis=0)
    return np.rint(np.where(is_sound, times * 1000, DAMAGED)).astype(np.int64)
