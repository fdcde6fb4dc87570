"""How much of a core the judging of a run that grows may take."""

from __future__ import annotations

import resource

REST = 25
"""After a judgement, rest so many times as long as it used the CPU: 4 % of a core."""


def used_by_children_s() -> float:
    """Return the CPU time of all children that have ended; a wait on a busy machine costs none."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
