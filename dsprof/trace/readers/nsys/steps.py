"""Steps of training in an nsys export: NVTX ranges that are named so."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from dsprof.trace.readers.nsys.device_work import LONGEST_NS
from dsprof.trace.readers.nsys.processes import process_of
from dsprof.trace.readers.nsys.sqlite import Tables
from dsprof.trace.schema import Step

_NAME = re.compile(r"(ProfilerStep|step|iteration|iter)[ _:#=]*(\d{1,9})", re.I)
_MOST_STEPS = 1_000_000
_LONGEST_NAME = 100

Range = tuple[Any, ...]  # start, end, thread, text


def steps_of(ranges: Iterable[Range], process: int, origin_ns: int) -> list[Step]:
    """Return the steps of a process by the commonest way in which its ranges are named.

    Ranges like "step 3", "iteration_3" or, of torch's emit_nvtx, "ProfilerStep#3"; times since
    `origin_ns`.
    """
    found: defaultdict[str, dict[int, Step]] = defaultdict(dict)
    for start, end, thread, text in ranges:
        name = _NAME.fullmatch(str(text).strip())
        if name is None:
            continue
        if process_of(thread) != process or not start <= end < LONGEST_NS:
            continue
        number = int(name[2])
        step = Step(number, start - origin_ns, end - origin_ns, source="NVTX range")
        found[name[1].lower()].setdefault(number, step)
    commonest = max(found.values(), key=len, default={})
    return _apart([commonest[number] for number in sorted(commonest)])


def step_ranges(tables: Tables) -> list[Range]:
    """Read the ranges of all processes that may be steps by how their names begin."""
    if not tables.has("NVTX_EVENTS", "start", "end", "globalTid", "text"):
        return []
    text, join = tables.range_text()
    wanted = " OR ".join(f"{text} LIKE '{name}%'" for name in ("ProfilerStep", "step", "iter"))
    query = (
        f"SELECT n.start, n.end, n.globalTid, substr({text}, 1, {_LONGEST_NAME}) FROM NVTX_EVENTS "
        f"n {join} WHERE typeof(n.start) = 'integer' AND typeof(n.end) = 'integer' AND "
        f"typeof(n.globalTid) = 'integer' AND ({wanted}) LIMIT {_MOST_STEPS}"
    )
    return list(tables.rows(query))


def _apart(steps: list[Step]) -> list[Step]:
    """Return the steps, none if they overlap: those are no steps of one loop."""
    ends = [step.end_ns for step in steps[:-1]]
    overlap = any(step.start_ns < end for step, end in zip(steps[1:], ends, strict=True))
    return [] if overlap else steps
