"""Where ranks are in Python, as py-spy prints it: from files, or asked for now."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dsprof.analysis.aggregates.endings import Endings
from dsprof.files.inputs import open_input
from dsprof.files.ownership import foreign_link
from dsprof.trace.py_spy import LARGEST_BYTES, START, main_stacks
from dsprof.trace.run import RunFiles

_PATIENCE_S = 10.0
_MOST_FILES = 10_000


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
    for path in _files(paths):
        with suppress(OSError), open_input(path) as file:
            if file.read(len(START)) == START:
                text = (START + file.read(LARGEST_BYTES)).decode(errors="replace")
                found |= main_stacks(text)
    return found


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
