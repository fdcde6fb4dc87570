"""What a report costs: CPU seconds and peak memory of reading, summarising and judging a run.

    python benchmarks/analysis_speed.py [EVENTS]

Writes a trace of EVENTS collectives (default one million) over 1,000 steps, judges it in a fresh
process, and compares with the goals.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dsprof.trace import schema as trace
from dsprof.trace.lines import COMM_LINE, LINES, Line

GOAL_CPU_SECONDS = 2.5
GOAL_PEAK_MB = 400
STEPS = 1000
STEP_NS = 400_000_000

JUDGE = """
import json, resource, sys
from dsprof.diagnosis.build import diagnose
from dsprof.trace.run import find_run
diagnosis = diagnose(find_run([sys.argv[1]]))
usage = resource.getrusage(resource.RUSAGE_SELF)
calls = sum(row.calls for row in diagnosis.communication)
result = {
    "calls": calls,
    "cpu_seconds": usage.ru_utime + usage.ru_stime,
    "peak_mb": usage.ru_maxrss / 1024,
}
print(json.dumps(result))
"""


def main() -> int:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.rank00000.json"
        write_trace(path, events)
        command = [sys.executable, "-c", JUDGE, str(path)]
        cached = os.environ | {"DSPROF_CACHE": f"{folder}/cache"}  # as at any first reading
        result = json.loads(subprocess.check_output(command, env=cached))
        print(f"{events:,} collectives, {path.stat().st_size / 1e6:.0f} MB")
    print(f"CPU   {result['cpu_seconds']:6.2f} s   goal {GOAL_CPU_SECONDS} s")
    print(f"peak  {result['peak_mb']:6.0f} MB  goal {GOAL_PEAK_MB} MB")
    met = result["cpu_seconds"] <= GOAL_CPU_SECONDS and result["peak_mb"] <= GOAL_PEAK_MB
    return 0 if met else 1


def write_trace(path: Path, events: int) -> None:
    encode = msgspec.json.Encoder().encode
    with path.open("wb", buffering=1 << 20) as file:
        file.write(b"[\n")
        for event in lines(events):
            file.write(encode(event) + b",\n")
        file.write(encode(LINES["trailer"](args=trace.Trailer(reason="exit"))) + b"\n]\n")


def lines(events: int) -> Iterator[Line]:
    header = trace.Header(
        schema_version=trace.SCHEMA_VERSION,
        run_key="bench",
        rank=0,
        world_size=1,
        host="bench",
        boot_id="bench",
        pid=1,
        started_epoch_ns=1,
        started_monotonic_ns=1,
        backend="gloo",
    )
    yield LINES["header"](args=header)
    group = trace.Group(id=1, key="world", label="world", ranks=[0, 1], size=2, backend="gloo")
    yield LINES["group"](args=group)
    for site in range(1, 9):
        yield LINES["site"](args=trace.Site(id=site, file="train.py", line=site))
    per_step = max(1, events // STEPS)
    written = 0
    for step in range(STEPS):
        count = min(per_step, events - written) if step < STEPS - 1 else events - written
        yield from step_lines(step, count, written)
        written += count


def step_lines(step: int, count: int, before: int) -> Iterator[Line]:
    start = step * STEP_NS
    gap = STEP_NS // (count + 1)
    for index in range(count):
        number, at = before + index + 1, start + (index + 1) * gap
        is_gather = index % 2 == 1
        end = at + gap // 2
        args = trace.Collective(
            id=number,
            group=1,
            seq=number,
            nbytes=(1 << 20) + 1024 * (index % 7),
            elements=1 << 18,
            issue_ns=at,
            return_ns=at + 1000 if is_gather else end,
            dtype="bfloat16",
            requested="all_gather_fn" if is_gather else "all_reduce",
            request=number,
            is_async=is_gather,
            reduce_op="" if is_gather else "sum",
            site=1 + index % 8,
            step=step,
            micro_step=index * 2 // max(count, 1),
            phase="forward" if is_gather else "backward",
            thread=2,
            pending_ns=at + 500,
            done_ns=end,
            wait_ns=at + gap // 4 if is_gather else at,
            waited_ns=end,
            blocked_ns=gap // 4 if is_gather else gap // 2,
            waits=1,
        )
        name = "all_gather_into_tensor" if is_gather else "all_reduce"
        yield COMM_LINE(name=name, ts=at / 1e3, dur=(end - at) / 1e3, args=args)
    for offset, phase in enumerate(("forward", "backward")):
        half = STEP_NS // 2
        span = trace.Phase(start_ns=start + offset * half, end_ns=start + (offset + 1) * half)
        span.step = step
        yield LINES["phase"](name=phase, ts=span.start_ns / 1e3, dur=half / 1e3, args=span)
    whole = trace.Step(step=step, start_ns=start, end_ns=start + STEP_NS, micro_steps=2)
    yield LINES["step"](name="step", ts=start / 1e3, dur=STEP_NS / 1e3, args=whole)


if __name__ == "__main__":
    sys.exit(main())
