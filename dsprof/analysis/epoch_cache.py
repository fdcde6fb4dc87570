"""What epochs that are over came to, in the user's cache: each judgement of a run needs it.

An entry is decoded by type; what does not fit is not used.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import msgspec

from dsprof._version import __version__
from dsprof.analysis.aggregates.epochs import Epoch
from dsprof.files.inputs import is_local, version_of
from dsprof.files.ownership import why_untrusted
from dsprof.files.redaction import map_text, redact_text
from dsprof.trace.column_cache import EPOCH, folder, is_ready, new_entry
from dsprof.trace.rolling.parts import is_rolling, parts_of
from dsprof.trace.run import RunFiles

_SETTLED_S = 60.0
"""Files that were written since may still grow, and dumps of a hang be added."""

_LARGEST_BYTES = 1 << 20


def load(number: int, files: RunFiles) -> Epoch | None:
    """Return what was found of an epoch before; None if nothing was, or its files are others."""
    with suppress(OSError, ValueError, RecursionError, msgspec.MsgspecError):
        place = _place(number, files)
        if place is None or why_untrusted(place) or place.stat().st_size > _LARGEST_BYTES:
            return None
        epoch = msgspec.msgpack.decode(place.read_bytes(), type=Epoch)
        os.utime(place)
        return epoch
    return None


def store(epoch: Epoch, files: RunFiles) -> None:
    """Keep what was found of an epoch, if its files are settled."""
    with suppress(OSError):  # it is read again then
        place = _place(epoch.number, files)
        if place is not None and is_ready(place.parent):
            with new_entry(place) as file:
                file.write(msgspec.msgpack.encode(map_text(epoch, redact_text)))


def _place(number: int, files: RunFiles) -> Path | None:
    """Return the entry for an epoch as its files are now; None where it cannot be kept.

    Raises:
        OSError: a file is not there.
    """
    root, key = folder(), blake2b(digest_size=20)
    if root is None:
        return None
    key.update(f"{__version__}\n{number}\n{files.selection!r}\n".encode(errors="surrogateescape"))
    for path in _all_of(files):
        if not is_local(path):
            return None
        status = path.stat()
        if time.time() - status.st_mtime < _SETTLED_S:
            return None
        facts = f"{path.resolve()}\n{version_of(status)}\n"
        key.update(facts.encode(errors="surrogateescape"))
    return root / f"{key.hexdigest()}{EPOCH}"


def _all_of(files: RunFiles) -> list[Path]:
    found = []
    for path, header in zip(files.files, files.headers, strict=True):
        found += [path, *files.beside.get(header.rank, ())]
        found += parts_of(path) if is_rolling(header) else ()
    return found
