"""Trains with a disturbance: ranks that sleep before every second step, or one that is killed.

What really happened is written to OUT/truth.rank<R>.json, a line a step: for how long this rank
slept before it, and for how long it was inside torch's collectives.
"""

import argparse
import functools
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import deepspeed
import torch.distributed as dist

from tests.dist.leaving import leave_group
from tests.dist.programs import small_zero


def slept_ns(seconds: float) -> int:
    start = time.perf_counter_ns()
    time.sleep(seconds)
    return time.perf_counter_ns() - start


class Stopwatch:
    """Sums the time inside the functions that it was put around."""

    def __init__(self) -> None:
        self.total_ns = 0

    def around(self, function: Callable) -> Callable:
        @functools.wraps(function)
        def timed(*args, **kwargs):
            start = time.perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.total_ns += time.perf_counter_ns() - start

        return timed

    def take_ns(self) -> int:
        total, self.total_ns = self.total_ns, 0
        return total


def is_written(step: int) -> bool:
    """Say whether this step of this rank is on disk."""
    [trace] = Path(os.environ["DSPROF_OUT"]).glob(f"trace*.rank{dist.get_rank():05d}.json")
    return b'"cat":"step","args":{"step":%d,' % step in trace.read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--sleep-ms", type=float, default=0.0)
    parser.add_argument("--sleepers", type=int, nargs="*", default=[], help="ranks that sleep")
    parser.add_argument("--kill", type=int, default=-1, help="rank to kill once all is on disk")
    args = parser.parse_args()
    blocked = Stopwatch()
    for name in ("all_reduce", "all_gather_into_tensor"):
        setattr(dist, name, blocked.around(getattr(dist, name)))
    deepspeed.init_distributed(dist_backend="gloo")
    rank = dist.get_rank()
    engine = small_zero.build(stage=2)
    with (args.out / f"truth.rank{rank}.json").open("w", buffering=1) as truth:
        sleep_ns = 0
        for step, _ in enumerate(small_zero.losses(engine, args.steps)):
            row = {"sleep_ns": sleep_ns, "blocked_ns": blocked.take_ns()}
            truth.write(json.dumps(row) + "\n")
            sleeps = rank in args.sleepers and step % 2 == 0
            sleep_ns = slept_ns(args.sleep_ms / 1e3) if sleeps else 0
    if rank == args.kill:
        while not is_written(args.steps - 1):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    leave_group()


if __name__ == "__main__":
    main()
