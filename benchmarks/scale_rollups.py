"""What a report of rolling recordings costs, of which only a few are on disk at a time.

    python -m benchmarks.scale_rollups [--ranks 2560 5120 10240] [--steps 100000]

Each rank is written, read, summed up and deleted by the process that reads it. One rank is late in
50 steps. The newest 40 steps have details; of all others there are sums over time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from functools import lru_cache
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.scale_pages import look_at, said
from benchmarks.scale_runs import Size, sums, write_sums
from dsprof.analysis.aggregates import AGGREGATES
from dsprof.analysis.engine import Job, Processes, unshown
from dsprof.analysis.pool import collect
from dsprof.analysis.summary import RankClock, RunSummary
from dsprof.diagnosis.build import diagnosis_of
from dsprof.reports import render
from dsprof.trace.run import find_run, rank_files, read_rank


class _Task(NamedTuple):
    size: Size
    rank: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2560, 5120, 10240])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    if len(arguments.ranks) == 1:
        size = Size(arguments.ranks[0], arguments.steps, arguments.calls)
        return 0 if _holds(size, arguments.processes) else 1
    # A process for each size, whose peak of memory is its own.
    given = [f"--steps={arguments.steps}", f"--calls={arguments.calls}"]
    given += [f"--processes={arguments.processes}"]
    command = [sys.executable, "-m", "benchmarks.scale_rollups", *given]
    runs = [subprocess.run([*command, f"--ranks={one}"], check=False) for one in arguments.ranks]
    return max(run.returncode for run in runs)


def _holds(size: Size, processes: int) -> bool:
    print(
        f"{size.ranks:,} ranks, {size.steps:,} steps: {size.ranks * size.steps:,} steps of a rank"
    )
    begin_s = time.monotonic()
    tasks = [_Task(size, rank) for rank in range(size.ranks)]
    summary = Processes(processes).merged(_JOB, tasks, unshown)
    diagnosis = diagnosis_of(summary.in_order(), {})
    page = render(diagnosis, "html")
    seconds = time.monotonic() - begin_s
    usage = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    cpu_s = [one.ru_utime + one.ru_stime for one in usage]
    driver_mb, other_mb = (one.ru_maxrss / 1e3 for one in usage)
    print(f"    {seconds:.0f} s, CPU: driver {cpu_s[0]:.0f} s, others {cpu_s[1]:.0f} s")
    print(f"    memory: driver {driver_mb:.0f} MB, others {other_mb:.0f} MB", flush=True)
    named = [one for one in diagnosis.findings if size.slow_rank in one.ranks]
    return all(
        [
            said(
                f"the late rank is named ({'; '.join(one.problem for one in named)})", bool(named)
            ),
            look_at(page),
        ]
    )


def _read(task: _Task) -> RunSummary:
    """Write a rank, and collect its aggregates."""
    with TemporaryDirectory() as folder:
        parts = _parts(task.size, task.rank == task.size.slow_rank)
        write_sums(Path(folder), task.size, task.rank, parts)
        [files] = rank_files(find_run([folder]))
        trace = read_rank(files)
    return collect(trace, RankClock(), AGGREGATES)


@lru_cache(maxsize=2)
def _parts(size: Size, is_slow: bool) -> dict[str, bytes]:
    return sums(size, is_slow=is_slow)


def _lost(task: _Task) -> RunSummary:
    raise SystemExit(f"a process died of rank {task.rank}")


_JOB = Job(_read, RunSummary.merge, _lost)


if __name__ == "__main__":
    os.environ["DSPROF_CACHE"] = "off"
    raise SystemExit(main())
