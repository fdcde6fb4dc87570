"""Folders by host: with very many ranks one folder would have tens of thousands of files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, compress
from pathlib import Path

from dsprof.files import inputs
from dsprof.files.ownership import foreign_link
from dsprof.files.read_ahead import answers
from dsprof.trace.schema import FILE_PATTERN, Header

MANY_RANKS = 64

HOSTS = "hosts"


def folder_of(header: Header, out: Path) -> Path:
    """Return where a rank writes its files."""
    if header.world_size < MANY_RANKS:
        return out
    return out / HOSTS / (re.sub(r"[^\w.-]", "_", header.host)[:100].lstrip(".") or "unknown")


def host_folders(entries: Iterable[Path]) -> Iterator[Path]:
    """Yield the folders of hosts among what is in a folder, without links of other users."""
    for path in entries:
        with suppress(OSError):
            if path.name == HOSTS and not foreign_link(path) and inputs.is_folder(path):
                inside = [one for one in inputs.entries(path) if not foreign_link(one)]
                yield from compress(inside, [*answers(inputs.is_folder, inside)])


def shared_folder(trace: Path) -> Path:
    """Return the folder of the whole run, in which dumps of hangs are."""
    folder = trace.parent.parent if trace.parent.suffix == ".zip" else trace.parent
    return folder.parents[1] if folder.parent.name == HOSTS else folder


def traces_in(out: Path, pattern: str = FILE_PATTERN) -> Iterator[Path]:
    """Yield dsprof's own traces."""
    return chain(out.glob(pattern), out.glob(f"{HOSTS}/*/{pattern}"))
