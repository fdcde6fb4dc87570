"""dsprof against HolisticTraceAnalysis: the same profiles, the same questions, side by side.

    python -m venv build/hta && build/hta/bin/pip install HolisticTraceAnalysis
    python benchmarks/analysis.py --hta build/hta/bin/python [TRACE]

Writes the traces of 8 ranks of 100,000 events each, copies of TRACE if one is given (an export of
torch.profiler with at least one kernel), else made up. Both tools load them, and say how much of
communication is hidden and what the device did: three rounds, taking turns, after one that is not
counted, in which Python compiles what it imports. CPU is that of the whole process tree, memory the
largest sum of its resident sets.

HolisticTraceAnalysis looks at what was launched inside profiler steps but the last, so the copies
have one step around everything and an empty one behind it; and it cuts times to whole microseconds,
which takes up to two off each kernel, unless a variable of its own says otherwise. Both then see
the same.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

RANKS = 8
EVENTS = 100_000
ROUNDS = 3
GOAL_CPU, GOAL_MEMORY = 20, 5
VARIABLES = {"HTA_DISABLE_NS_ROUNDING": "1", "PYTHONDONTWRITEBYTECODE": ""}

DSPROF = """
import json, sys
from pathlib import Path
from dsprof.analysis.aggregates.device import Device
from dsprof.analysis.summarise import summarise
from dsprof.trace.run import find_run
ranks = summarise(find_run([sys.argv[1]]), [Device])[Device].ranks
print(json.dumps({rank: [one.overlap * 100, one.idle_ns / 1e3, one.compute_ns / 1e3]
                  for rank, one in ranks.items()}))
"""

HTA = """
import json, sys, logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
times = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
print(json.dumps({int(rank): [float(overlap.iloc[:, 0][rank]), float(times["idle_time(us)"][rank]),
                              float(times["compute_time(us)"][rank])] for rank in times.index}))
"""


class Cost(NamedTuple):
    """What one run of a tool took."""

    cpu_seconds: float
    peak_mb: float
    answer: dict[str, list[float]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hta", required=True, help="python that has HolisticTraceAnalysis")
    parser.add_argument("trace", nargs="?", type=Path, help="an export of torch.profiler")
    arguments = parser.parse_args()
    document = _copied(arguments.trace) if arguments.trace else _made_up()
    with tempfile.TemporaryDirectory() as folder:
        traces = Path(folder) / "traces"
        traces.mkdir()
        for rank in range(RANKS):
            _write(traces / f"rank{rank}.json.gz", document, rank)
        variables = os.environ | VARIABLES | {"PYTHONPYCACHEPREFIX": f"{folder}/compiled"}
        ours, theirs = [], []
        for _ in range(1 + ROUNDS):
            ours.append(_measure([sys.executable, "-c", DSPROF, str(traces)], variables))
            theirs.append(_measure([arguments.hta, "-c", HTA, str(traces)], variables))
    return _report(len(document["traceEvents"]), ours[1:], theirs[1:])


def _report(events: int, ours: list[Cost], theirs: list[Cost]) -> int:
    print(f"{RANKS} ranks of {events:,} events, medians of {ROUNDS} rounds")
    print(f"{'':8} {'CPU s':>8} {'peak MB':>8}")
    cost = {}
    for name, runs in (("dsprof", ours), ("HTA", theirs)):
        cost[name] = median(r.cpu_seconds for r in runs), median(r.peak_mb for r in runs)
        print(f"{name:8} {cost[name][0]:8.2f} {cost[name][1]:8.0f}")
    cpu, memory = (theirs / ours for theirs, ours in zip(cost["HTA"], cost["dsprof"], strict=True))
    apart = _largest_difference(ours[0].answer, theirs[0].answer)
    print(f"{cpu:.1f} times less CPU (goal {GOAL_CPU}), {memory:.1f} times less memory "
          f"(goal {GOAL_MEMORY}), results differ by at most {apart:.3%}")  # fmt: skip
    return 0 if cpu >= GOAL_CPU and memory >= GOAL_MEMORY and apart <= 1e-3 else 1


def _largest_difference(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> float:
    """Return the largest relative difference of any figure of any rank."""
    if ours.keys() != theirs.keys():
        return float("inf")
    pairs = [pair for rank in ours for pair in zip(ours[rank], theirs[rank], strict=True)]
    return max(abs(a - b) / max(abs(a), abs(b), 1e-9) for a, b in pairs)


def _measure(command: list[str], variables: Mapping[str, str]) -> Cost:
    """Run a tool; its memory is sampled, its CPU is what the kernel counted for the tree."""
    before = os.times()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables
    )
    tool, peak = psutil.Process(process.pid), 0
    while process.poll() is None:
        peak = max(peak, _resident(tool))
        time.sleep(0.02)
    output, errors = process.communicate()
    if process.returncode:
        raise SystemExit(errors[-2000:])
    after = os.times()
    spent = (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )
    return Cost(spent, peak / 1e6, json.loads(output.splitlines()[-1]))


def _resident(tool: psutil.Process) -> int:
    try:
        return sum(one.memory_info().rss for one in (tool, *tool.children(recursive=True)))
    except psutil.Error:
        return 0


def _copied(path: Path) -> dict[str, Any]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path) as file:
        document: dict[str, Any] = json.load(file)
    events = document["traceEvents"]
    kept = [event for event in events if "ProfilerStep" not in event.get("name", "")]
    while len(kept) < EVENTS:  # the same again, later
        shift = 1 + max(e["ts"] + e.get("dur", 0) for e in kept if e.get("ph") == "X")
        start = min(e["ts"] for e in kept if e.get("ph") == "X")
        kept += [e | {"ts": e["ts"] - start + shift} for e in kept if e.get("ph") == "X"]
    return document | {"traceEvents": kept + _steps(kept)}


def _made_up() -> dict[str, Any]:
    """Three host events and a kernel, over and over; every tenth kernel communicates."""
    events: list[dict[str, Any]] = []
    for i in range(EVENTS // 4):
        at = 1_700_000_000_000_000 + 100 * i
        args = {"External id": i, "Ev Idx": i, "Input Dims": [[512, 512]]}
        host = {"ph": "X", "pid": 1, "tid": 1, "ts": at}
        events.append({**host, "cat": "cpu_op", "name": "aten::linear", "dur": 30, "args": args})
        events.append({**host, "cat": "cpu_op", "name": "aten::addmm", "dur": 20, "args": args})
        launch = {"correlation": i + 1, "External id": i}
        events.append({**host, "ts": at + 5, "cat": "cuda_runtime", "name": "cudaLaunchKernel",
                       "dur": 5, "args": launch})  # fmt: skip
        talks = i % 10 == 0
        stream = 20 if talks else 7
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)" if talks else "sgemm_128x64"
        took = 150 if talks else 60
        device = {"stream": stream, "device": 0, **launch}
        events.append({"ph": "X", "pid": 0, "tid": stream, "ts": at + 40, "cat": "kernel",
                       "name": name, "dur": took, "args": device})  # fmt: skip
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "any"}],
        "distributedInfo": {},
        "traceEvents": events + _steps(events),
    }


def _steps(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    spans = [event for event in events if event.get("ph") == "X"]
    host = next(event for event in spans if event.get("cat") == "cuda_runtime")
    start = min(event["ts"] for event in spans) - 1
    end = max(event["ts"] + event.get("dur", 0) for event in spans) + 1
    step = {"ph": "X", "cat": "user_annotation", "pid": host["pid"], "tid": host["tid"]}
    first = {**step, "name": "ProfilerStep#1", "ts": start, "dur": end - start, "args": {}}
    return [first, {**step, "name": "ProfilerStep#2", "ts": end + 1, "dur": 1, "args": {}}]


def _write(path: Path, document: dict[str, Any], rank: int) -> None:
    who = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": RANKS}}
    path.write_bytes(gzip.compress(json.dumps(document | who).encode(), 1))


if __name__ == "__main__":
    raise SystemExit(main())
