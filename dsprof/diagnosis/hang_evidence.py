"""Further evidence of a run that hangs: its processes on this machine, py-spy, and NCCL's RAS."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dsprof.analysis.aggregates.endings import Endings
from dsprof.environment.machine import boot_id
from dsprof.environment.processes import GONE, ProcessLook, look_at
from dsprof.errors import TraceError
from dsprof.files.ownership import foreign_link
from dsprof.trace.dumps import kernel_log, nccl_ras, py_spy
from dsprof.trace.dumps.kernel_log import KernelMessage
from dsprof.trace.dumps.nccl_ras import Communicator, communicators
from dsprof.trace.dumps.py_spy import main_stacks
from dsprof.trace.dumps.state_file import SILENT_S
from dsprof.trace.life import is_here
from dsprof.trace.run import RunFiles
from dsprof.trace.source import Source

_PATIENCE_S = 10.0
_MOST_FILES = 10_000
_PREAMBLE = 4096


def with_stacks(endings: Endings, run: RunFiles, stacks: Mapping[int, tuple[str, ...]]) -> Endings:
    """Return the ranks with the stacks of their processes, which are known by their pids."""
    ranks = dict(endings.ranks)
    for header in run.headers:
        if header.rank in ranks and (stack := stacks.get(header.pid)):
            ending = ranks[header.rank]
            symptoms = replace(ending.symptoms, stack=stack)
            ranks[header.rank] = replace(ending, symptoms=symptoms)
    return Endings(ranks, endings.groups)


def printed_stacks(paths: Iterable[Path]) -> dict[int, tuple[str, ...]]:
    """Return the stacks, by pid, in files of py-spy among `paths` and in folders there."""
    found: dict[int, tuple[str, ...]] = {}
    for text in _texts(paths, lambda start: start.startswith(py_spy.START), py_spy.LARGEST_BYTES):
        found |= main_stacks(text)
    return found


def printed_ras(paths: Iterable[Path]) -> list[list[Communicator] | None]:
    """Return the communicators with problems in each output of ncclras among `paths` and there.

    None of an output that cannot be read.
    """
    return [*map(communicators, _texts(paths, nccl_ras.START.search, nccl_ras.LARGEST_BYTES))]


def printed_by_kernels(paths: Iterable[Path], run: RunFiles) -> list[KernelMessage]:
    """Return what the logs of kernels among `paths` and in folders there say of processes.

    A log that does not name its host is of the host of the run that the name of the file has.
    """
    hosts = {header.host for header in run.headers if not header.anonymized}
    found: list[KernelMessage] = []
    for path in _files(paths):
        with suppress(TraceError), Source(path) as source:
            start = source.read(_PREAMBLE)
            if kernel_log.START.search(start.decode(errors="replace")):
                told = kernel_log.messages(kernel_log.marked(start, source.read))
                named = {host for host in hosts if _names(path.name, host)}
                of_file = named.pop() if len(named) == 1 else ""
                found += (replace(one, host=one.host or of_file) for one in told)
    return found


def _names(file: str, host: str) -> bool:
    short = re.escape(host.partition(".")[0])
    return bool(short) and bool(re.search(rf"(?<![^\W_]){short}(?![^\W_])", file, re.IGNORECASE))


def asked_kernel(run: RunFiles) -> list[KernelMessage]:
    """Ask the kernel of this machine for its log, if a rank of the run ran since its boot.

    Nothing where dmesg is not allowed to.
    """
    host = next((one.host for one in run.headers if one.boot_id and one.boot_id == boot_id()), "")
    with suppress(OSError, subprocess.SubprocessError):
        if host:
            done = subprocess.run(["dmesg"], capture_output=True, timeout=_PATIENCE_S)
            found = kernel_log.messages(done.stdout.decode(errors="replace"))
            return [replace(message, host=host) for message in found]
    return []


def _texts(
    paths: Iterable[Path], is_wanted: Callable[[str], object], most_bytes: int
) -> Iterator[str]:
    """Yield the texts that begin as wanted; of other files only the beginning is read."""
    for path in _files(paths):
        with suppress(TraceError), Source(path) as source:
            start = source.read(_PREAMBLE)
            if is_wanted(start.decode(errors="replace")):
                yield (start + source.read(most_bytes)).decode(errors="replace")


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        with suppress(OSError):
            names = sorted(path.iterdir())[:_MOST_FILES]
            yield from (one for one in names if one.is_file() and not foreign_link(one))


def asked_stacks(pids: Iterable[int]) -> dict[int, tuple[str, ...]]:
    """Ask py-spy for the stacks of processes; nothing where it is not installed, or not allowed."""
    found: dict[int, tuple[str, ...]] = {}
    if (program := shutil.which("py-spy")) is None:
        return found
    for pid in pids:
        command = [program, "dump", "--nonblocking", "--pid", str(pid)]
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S)
            found |= main_stacks(done.stdout.decode(errors="replace"))
    return found


def seen_now(endings: Endings, run: RunFiles) -> Endings:
    """Return the ranks with what the kernel says of those whose processes were on this machine."""
    ranks = dict(endings.ranks)
    for rank, look in _looks(run):
        if ending := ranks.get(rank):
            seen = replace(
                ending.symptoms, state=look.state, waits_in=look.waits_in, is_seen_now=True
            )
            ranks[rank] = replace(ending, symptoms=seen)
    return Endings(ranks, endings.groups)


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
        is_old = time.time() - os.path.getmtime(path) > SILENT_S
        if is_visible or is_old:
            yield header.rank, look
