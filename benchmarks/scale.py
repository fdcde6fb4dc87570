"""What a report of many ranks costs, and whether it names a rank that is late for a while.

    python -m benchmarks.scale [--ranks 64] [--steps 5000] [--calls 100] [--folder FOLDER]
    python -m benchmarks.scale --ranks 1024 --steps 10000 --calls 1 --packed --no-dask

Writes a run (64 x 5,000 x 100: 32 million collectives, 14 GB) in which one rank is late in 50 of
the steps. Judges it in processes of this machine, then by Dask with one and two workers, whose JSON
must be equal to the last byte, then with a worker killed on the way, a file cut and a file missing.
CPU is that of all processes, memory the largest resident set of the driver and of any other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import psutil

from benchmarks.scale_pages import look_at, said
from benchmarks.scale_runs import Size, write_run

_REPORT = [sys.executable, "-m", "dsprof", "report", "--format", "json", "--quiet"]


_CLUSTERS = (
    ("Dask, 1 worker", 1, False),
    ("Dask, 2 workers", 2, False),
    ("Dask, a worker killed", 2, True),
)


class Cost(NamedTuple):
    """What one report took."""

    seconds: float
    cpu_seconds: float
    driver_mb: float
    other_mb: float
    json: bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in zip(Size._fields, (64, 5000, 100), strict=True):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", type=Path, help="where the run is written, and stays")
    parser.add_argument("--packed", action="store_true", help="write gzip: a tenth of the disk")
    parser.add_argument("--no-dask", action="store_true")
    parser.add_argument("--no-damage", action="store_true")
    arguments = parser.parse_args()
    size = Size(*(getattr(arguments, name) for name in Size._fields))
    os.environ["DSPROF_CACHE"] = "off"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have bytecode
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary) / "run"
        if not folder.exists():
            write_run(folder, size, is_packed=arguments.packed)
        print(f"{'':24} {'wall s':>7} {'CPU s':>7} {'driver MB':>10} {'other MB':>9}")
        here = _measured("processes", [str(folder)])
        holds = [look_at(_page(here.json)), _names(here.json, size.slow_rank)]
        if not arguments.no_dask:
            holds += _on_dask(folder, here.json)
        if not arguments.no_damage:
            holds.append(_damaged(folder))
        return 0 if all(holds) else 1


def _on_dask(folder: Path, expected: bytes) -> Iterator[bool]:
    for what, workers, is_one_killed in _CLUSTERS:
        with _cluster(workers, is_one_killed=is_one_killed) as (address, pids):
            there = _measured(what, [str(folder), *address], pids)
        yield said("JSON equal to the last byte", there.json == expected)


def _names(document: bytes, rank: int) -> bool:
    """Say whether a finding or a mark of the map of steps names the late rank, and draws it."""
    found = json.loads(document)
    named = [one["problem"] for one in found["findings"] if rank in one["ranks"]]
    named += [one["text"] for one in found["step_map"]["marks"] if one["rank"] == rank]
    drawn = any(bar["rank"] == rank for one in found["timelines"] for bar in one["bars"])
    where = f"{(named or ['nowhere'])[0]}; {'' if drawn else 'not '}drawn in detail"
    return said(f"the late rank is named ({where})", bool(named))


def _page(document: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        saved, page = Path(folder) / "run.json", Path(folder) / "page.html"
        saved.write_bytes(document)
        subprocess.run([*_REPORT[:4], str(saved), "--quiet", "-o", str(page)], check=True)
        return page.read_bytes()


def _damaged(folder: Path) -> bool:
    """Cut a file, and hide another for one report."""
    cut, missing = sorted(folder.iterdir())[1:3]
    whole, hidden = cut.stat().st_size, folder.parent / f"{folder.name}.hidden"
    end = cut.read_bytes()[whole // 2 :]
    os.truncate(cut, whole // 2)
    os.utime(cut, (0, 0))  # or it may still be written
    missing.rename(hidden)
    try:
        quality = json.loads(_measured("one cut, one missing", [str(folder)]).json)["quality"]
    finally:
        with cut.open("ab") as file:
            file.write(end)
        hidden.rename(missing)
    told = quality["unclean_ranks"] == [1] and quality["missing_ranks"] == [2]
    return said("both are named", told)


def _measured(what: str, arguments: list[str], workers: Sequence[int] = ()) -> Cost:
    others = [psutil.Process(pid) for pid in workers]
    before_s, before = time.monotonic(), os.times()
    worked_before = sum(_cpu_seconds(one) for one in others)
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([*_REPORT, *arguments], stdout=output)
        driver, driver_bytes, other_bytes = psutil.Process(process.pid), 0, 0
        while process.poll() is None:
            driver_bytes = max(driver_bytes, _resident(driver))
            for one in others or _children(driver):
                other_bytes = max(other_bytes, _resident(one))
            time.sleep(0.05)
        output.seek(0)
        document = output.read()
    after = os.times()
    spent = after.children_user + after.children_system
    cpu = spent - before.children_user - before.children_system
    cpu += sum(_cpu_seconds(one) for one in others) - worked_before
    cost = Cost(time.monotonic() - before_s, cpu, driver_bytes / 1e6, other_bytes / 1e6, document)
    print(f"{what:24} {cost.seconds:7.1f} {cpu:7.1f} {cost.driver_mb:10.0f} {cost.other_mb:9.0f}")
    return cost


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.Error:
        return 0


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
        return times.user + times.system
    except psutil.Error:
        return 0.0


def _kill_at_work(worker: psutil.Process) -> None:
    """Kill a worker when it has computed for a second."""
    begun = _cpu_seconds(worker)
    while _cpu_seconds(worker) < begun + 1:
        time.sleep(0.05)
    worker.kill()


@contextmanager
def _cluster(workers: int, *, is_one_killed: bool = False) -> Iterator[tuple[list[str], list[int]]]:
    """Start Dask on this machine; one worker may be killed, and is started anew."""
    from distributed import LocalCluster

    options: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=workers, host="127.0.0.1", memory_limit=0, **options) as cluster:
        pids = [nanny.process.pid for nanny in cluster.workers.values()]
        if is_one_killed:
            Thread(target=_kill_at_work, args=[psutil.Process(pids[0])], daemon=True).start()
        yield ["--engine", cluster.scheduler_address.replace("tcp://", "dask://")], pids


if __name__ == "__main__":
    raise SystemExit(main())
