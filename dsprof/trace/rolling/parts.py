"""The files of a rolling recording.

A rank has a book, `trace.rank00003.json`: header, definitions, trailer. Beside it are two tails
with the newest lines, and what was copied out of them: `.kept.gz` (details of steps), `.steps.gz`
(sums of single steps) and `.series.gz` (roll-ups). `.profile.gz` is what torch.profiler recorded:
a file of its own for those that read.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from dsprof.files.inputs import open_input
from dsprof.files.ownership import foreign_link
from dsprof.trace.schema import Header
from dsprof.trace.source import is_readable

TAILS = (".tail0", ".tail1")
KEPT, STEPS, SERIES = ".kept.gz", ".steps.gz", ".series.gz"
STATE = ".state"
"""In an archive: the state of a process that was killed."""
PARTS = (*TAILS, KEPT, STEPS, SERIES, STATE)
_READ = (KEPT, SERIES, *TAILS)
PROFILE = ".profile.gz"
ARCHIVE = ".earlier.zip"
"""What is over, of each rank."""
ALWAYS = "always"
"""The mode of a rolling recording."""

_CLOSING = b"\n]\n"


def part_of(book: Path, ending: str) -> Path:
    """Return the path of a part."""
    return book.with_name(book.name.removesuffix(".json") + ending)


def copy_of(path: Path) -> Path:
    """Return the file that is to replace another one; a killed process may leave it."""
    return path.with_name(f".{path.name}")


def is_rolling(header: Header) -> bool:
    """Say whether a file is the book of a rolling recording."""
    return header.config.get("mode") == ALWAYS


def parts_of(book: Path) -> list[Path]:
    """Return the parts that a report reads: kept steps, roll-ups, then the newest lines."""
    return [path for path in possible_parts(book) if is_readable(path) and not foreign_link(path)]


def lost_parts(book: Path, found: Collection[Path]) -> list[str]:
    """Return the endings of parts that are missing: a recorder makes all, an archive keeps some."""
    if is_archived(book):
        return []
    lost = [ending for ending in _READ if part_of(book, ending) not in found]
    return lost if is_readable(part_of(book, STEPS)) else [*lost, STEPS]


def possible_parts(book: Path) -> list[Path]:
    """Return these parts, whether they are there or not."""
    return [part_of(book, ending) for ending in _READ]


def written_parts(book: Path) -> list[Path]:
    """Return all parts that a recorder writes, whether they are there or not."""
    return [*possible_parts(book), part_of(book, STEPS)]


def files_of_rank(book: Path) -> list[Path]:
    """Return the files of a recording that its budget holds, its book first."""
    return [book, *(part_of(book, ending) for ending in PARTS)]


def is_archived(book: Path) -> bool:
    """Say whether a recording is in an archive: it is over."""
    return book.parent.name.endswith(ARCHIVE)


def is_closed(book: Path) -> bool:
    """Say whether a rank has ended its recording: only the last line closes the list."""
    with suppress(OSError), open_input(book) as file:
        file.seek(-len(_CLOSING), os.SEEK_END)
        return file.read() == _CLOSING
    return False


def written_at_s(book: Path) -> float:
    """Return when a rank wrote last, by the clock of the file system; 0 if that is unknown."""
    times = [0.0]
    for path in (book, *(part_of(book, ending) for ending in TAILS)):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)


def is_part(path: Path) -> bool:
    """Say whether a file is a part of a recording, to be read with its book."""
    return path.name.startswith("trace") and ".rank" in path.name and path.name.endswith(PARTS)
