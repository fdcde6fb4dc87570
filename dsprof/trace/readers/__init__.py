"""The readers: each module or package here that has a `READER`, and those of plugins."""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
from pathlib import Path

from dsprof.plugins import entry_points
from dsprof.plugins.parts import folders_in, in_folder
from dsprof.trace.readers.base import START_BYTES, Facts, Reader
from dsprof.trace.readers.plugin_reader import accepted
from dsprof.trace.source import Source, read_start

READERS: tuple[Reader, ...] = tuple(
    sorted(
        (
            reader
            for folder in (__name__, *folders_in(__name__))
            for reader in in_folder(folder, "READER")
        ),
        key=attrgetter("order"),
    )
)
"""The first that recognises a file reads it; and where two files tell the same, the first tells.

Those of plugins come after these.
"""

_LONGEST_PREAMBLE_BYTES = 1 << 22


def reader_of(path: Path) -> Reader | None:
    """Return the reader of a file by its content; None where no reader knows it.

    Raises:
        TraceError: the file cannot be opened.
    """
    start = read_start(path, START_BYTES)
    if (found := _recognised(start)) is None and len(start) == START_BYTES and b"\0" not in start:
        # What a job prints may begin with pages of its shells and launchers, or of its losses.
        found = _recognised(read_start(path, _LONGEST_PREAMBLE_BYTES)) or _log_by_end(path)
    return found


def place_of(reader: Reader) -> int:
    """Return how much a reader's files tell beside others of their rank: less is more."""
    if reader in READERS:
        return READERS.index(reader)
    return len(READERS) + plugin_readers().index(reader)


@lru_cache(maxsize=1)
def plugin_readers() -> tuple[Reader, ...]:
    """Load the readers of other packages, once a process."""
    taken = {reader.name for reader in READERS}
    found = entry_points.load(entry_points.group("readers"), accepted, attrgetter("name"), taken)
    return tuple(sorted(found, key=attrgetter("order")))


def _log_by_end(path: Path) -> Reader | None:
    with Source(path) as source:
        end = source.end(START_BYTES) if source.is_plain else b""
    return next((one for one in READERS if one.tells is Facts.LOG and one.recognises(end)), None)


def _recognised(start: bytes) -> Reader | None:
    """Ask the built-in readers first: most files need no plugin to be looked for."""
    first = next((reader for reader in READERS if reader.recognises(start)), None)
    return first or next((one for one in plugin_readers() if one.recognises(start)), None)
