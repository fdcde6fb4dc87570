"""What the time of a device is made of. Times are in ns."""

from __future__ import annotations

import numpy as np

from dsprof.analysis.rank.intervals import Intervals
from dsprof.analysis.rank.kernel_time import DeviceTime


def spans(*pairs: tuple[int, int]) -> Intervals:
    starts, ends = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
    return Intervals.union(starts, ends)


def test_each_window_is_split_into_parts_that_sum_to_its_length():
    time = DeviceTime(spans((0, 40), (110, 120)), spans((30, 50)), spans((45, 70)))
    parts = time.parts(np.array([0, 100]), np.array([100, 160]))
    assert parts.compute_ns.tolist() == [40, 10]
    assert parts.exposed_ns.tolist() == [10, 0]  # 30 to 40 is hidden behind computation
    assert parts.copies_ns.tolist() == [20, 0]  # 45 to 50 is hidden behind communication
    assert parts.idle_ns.tolist() == [30, 50]
