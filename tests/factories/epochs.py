"""Writes the traces of a run that restarted; times are in seconds since its first start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsprof.trace.lines import LINES, Line
from dsprof.trace.schema import EXIT, Heartbeat, Trailer
from tests.factories import trace as make
from tests.factories.trace_files import encode

START_NS = 1_700_000_000 * make.SECOND


@dataclass(frozen=True)
class Start:
    """One epoch: `steps` of 100 ms; of `ends` the reason, exception and what it lost by rank."""

    at: float
    steps: int = 10
    world_size: int = 2
    taken_before: int | None = 0
    ends: tuple[tuple[str, ...] | None, ...] = ()  # None: killed
    fields: tuple[tuple[str, Any], ...] = ()
    hosts: tuple[str, ...] = ()  # of each rank; (): one
    stuck_s: float = 0  # as long rank 0 waits for the others at last


def write(folder: Path, *starts: Start, keys: tuple[str, ...] = ("agent a",)) -> Path:
    """Write each epoch as files of its own, as the recorder does."""
    folder.mkdir(exist_ok=True)
    for number, start in enumerate(starts):
        for rank in range(start.world_size):
            name = f"trace{f'.{number}' if number else ''}.rank{rank:05d}.json"
            (folder / name).write_bytes(encode(_lines(number, rank, start, keys)))
    return folder


def _lines(number: int, rank: int, start: Start, keys: tuple[str, ...]) -> list[Line]:
    given: dict[str, Any] = {"run_key": f"run-{number}", "pid": 100 * number + rank + 1}
    given |= {"job_keys": [*keys, f"process {number}.{rank}"], "restarts": number}
    since_ns = round(start.at * make.SECOND)
    given |= {
        "host": start.hosts[rank] if start.hosts else "node-a",
        "started_epoch_ns": START_NS + since_ns,
        "started_monotonic_ns": 50 * make.SECOND + since_ns,
    }
    head = make.header(rank, start.world_size, **given | dict(start.fields))
    lines = [LINES["header"](name="header", args=head)]
    lines.append(LINES["group"](name="world", args=make.group(start.world_size)))
    for place in range(start.steps):
        at = 100.0 * place
        lines.append(make.sync("all_reduce", at + 10, 5, seq=place, step=place))
        step = make.step(place, at, at + 100)
        if not place and start.taken_before is not None:
            step.taken_before = start.taken_before
        lines.append(LINES["step"](name="step", args=step))
    if start.stuck_s and not rank:
        at = 100.0 * start.steps
        lines.append(make.hanging("all_reduce", at, seq=start.steps, step=start.steps))
        beat = Heartbeat(round((at / 1e3 + start.stuck_s) * make.SECOND), 1)
        lines.append(LINES["heartbeat"](name="heartbeat", args=beat))
    end = start.ends[rank] if rank < len(start.ends) else (EXIT, "")
    if end is not None:
        at_ns = round(0.1 * start.steps * make.SECOND) + 1
        reason, exception, *lost = end
        trailer = Trailer(reason, exception, exception_ns=at_ns * bool(exception))
        trailer.lost = "".join(lost)
        lines.append(LINES["trailer"](name="trailer", args=trailer))
    return lines
