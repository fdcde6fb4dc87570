"""In which calls the host waited for a device."""

from __future__ import annotations

import numpy as np

from dsprof.trace.columns import BoolArray
from dsprof.trace.device_activity import SYNCHRONISATION, TRANSFER, HostWork

SYNCHRONISES_NS = 20_000
"""A call that takes less waited for nothing."""
COPIES_NS = 100_000
"""A copy that does not wait is enqueued in tens of microseconds."""


def is_stop(host: HostWork) -> BoolArray:
    """Say which calls, of threads that launch work, blocked until the device had caught up."""
    lengths = host.end_ns - host.start_ns
    waits = (host.kind == SYNCHRONISATION) & (lengths >= SYNCHRONISES_NS)
    copies = (host.kind == TRANSFER) & (lengths >= COPIES_NS)
    return np.asarray((waits | copies) & host.launches, np.bool_)
