"""What the processes of a stuck run are doing now, as far as they are on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace

from dsprof.analysis.aggregates.endings import Endings
from dsprof.environment import boot_id
from dsprof.environment.processes import GONE, ProcessLook, look_at
from dsprof.trace.run import RunFiles
from dsprof.trace.schema import Header

_FRESH_S = 10.0  # a living process writes more often, unless it is stopped


def seen_now(endings: Endings, run: RunFiles) -> Endings:
    """Return the ranks with what the kernel says of those whose processes were on this machine."""
    ranks = dict(endings.ranks)
    for rank, look in _looks(run):
        if ending := ranks.get(rank):
            seen = replace(ending.symptoms, state=look.state, waits_in=look.waits_in)
            ranks[rank] = replace(ending, symptoms=seen)
    return Endings(ranks, endings.groups)


def is_here(header: Header) -> bool:
    """Say whether the process of a rank ran on this machine since it was started."""
    return bool(header.boot_id) and header.boot_id == boot_id()


def _looks(run: RunFiles) -> Iterator[tuple[int, ProcessLook]]:
    here = [
        (header, path)
        for header, path in zip(run.headers, run.files, strict=True)
        if is_here(header)
    ]
    looks = {header.rank: look_at(header.pid, header.started_monotonic_ns) for header, _ in here}
    # In a container of their own processes have other numbers: then none of them is found.
    is_visible = any(look.state != GONE for look in looks.values())
    for header, path in here:
        look = looks[header.rank]
        is_old = time.time() - os.path.getmtime(path) > _FRESH_S
        if is_visible or is_old:
            yield header.rank, look
