"""A month of training in fast motion: what a recording without end takes of disk, memory and CPU.

    python -m benchmarks.month [--steps 3000000] [--budget-mb 256] [--out build/month] [--real]

A fake clock and a generator drive the real recorder and writer of one rank: 3 million steps of
0.86 s with nine records each, slow steps and a change of pace among them. Then the report is made.

With `--real`, hooks in C record eight collectives per step on torch's fake backend, as fast as the
writer can follow.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import dsprof
from dsprof.recording import session
from dsprof.trace.writing.writer import TraceWriter
from tests.factories.month import WAITING, FastMotion, size_of

MOST_ADDED_BYTES = 64_000_000
MOST_REPORT_S = 30

Look = Callable[[], None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3_000_000)
    parser.add_argument("--budget-mb", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("build/month"))
    parser.add_argument("--real", action="store_true")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.out, ignore_errors=True)
    train = _train_really if arguments.real else _train_in_fast_motion
    held = _record(train, arguments.out, arguments.steps, arguments.budget_mb)
    return int(not (held and _report(arguments.out)))


def _train_in_fast_motion(out: Path, steps: int, budget_mb: int, look: Look) -> TraceWriter:
    slow = {steps // 2 + n: 3.0 for n in range(50)}
    slow |= dict.fromkeys(range(steps * 3 // 4, steps), 1.25)
    look()  # only now: what is slow takes tens of megabytes itself
    run = FastMotion(out, budget_mb * 1_000_000, world_size=1)
    run.slow = slow
    with run.running():
        run.train(steps, look)
    return run.writer


def _train_really(out: Path, steps: int, budget_mb: int, look: Look) -> TraceWriter:
    look()
    dsprof.enable(out=str(out), mode="always", budget_mb=budget_mb)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    tensors = [torch.zeros(64) for _ in range(8)]
    for _ in range(steps):
        for tensor in tensors:
            dist.all_reduce(tensor)
        dsprof.step()
        on = session.current()
        assert on is not None
        assert on.writer is not None
        writer = on.writer
        if len(on.recorder.outbox.records) > WAITING:
            look()
            while on.recorder.outbox.records and not writer.is_done:
                time.sleep(0.001)
    dsprof.disable()
    look()
    return writer


def _record(
    train: Callable[[Path, int, int, Look], TraceWriter], out: Path, steps: int, budget_mb: int
) -> bool:
    process, sizes, resident = psutil.Process(), [0], list[int]()

    def look() -> None:
        sizes.append(size_of(out))
        resident.append(process.memory_info().rss)

    begin_s = time.monotonic()
    writer, budget_bytes = train(out, steps, budget_mb, look), budget_mb * 1_000_000
    print(f"{steps:,} steps in {time.monotonic() - begin_s:.0f} s; error: {writer.error}")
    print(f"disk at most {max(sizes) / 1e6:.1f} MB of {budget_bytes / 1e6:.0f} MB")
    for path in sorted(out.iterdir()):
        print(f"  {path.name} {path.stat().st_size / 1e6:.2f} MB")
    added, left = max(resident) - resident[0], resident[-1] - resident[0]
    print(f"memory: {added / 1e6:.1f} MB added at most, {left / 1e6:.1f} MB at the end")
    print(f"writer: {writer.cpu_ns / steps / 1000:.1f} µs of CPU a step")
    return max(sizes) <= budget_bytes and added <= MOST_ADDED_BYTES and writer.error is None


def _report(out: Path) -> bool:
    begin_s = time.monotonic()
    page = out.parent / "month.html"
    command = [sys.executable, "-m", "dsprof", "report", str(out), "-o", str(page), "--quiet"]
    subprocess.run(command, check=True)
    spent_s = time.monotonic() - begin_s
    print(f"report: {spent_s:.1f} s, {page.stat().st_size / 1e6:.2f} MB")
    return spent_s <= MOST_REPORT_S


if __name__ == "__main__":
    sys.exit(main())
