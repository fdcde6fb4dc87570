"""Where ranks leave questions and answers for each other: a folder, or the store of torch.

No clocks are compared. A question is new if it differs from the last one that was seen, and an
answer if it differs from what was there before the question.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dsprof.files import notes

LARGEST_BYTES = 1 << 18
"""The limit of one writer; more is not written, and not read."""

MOST_WRITERS = 1 << 14

Answers = Mapping[str, bytes]
"""Messages by the name of their writer."""


class FileBoard:
    """A folder, in which each writer has a small file that is replaced as a whole.

    Only what is newer than `since_ns`, by the clock of the folder, is read: a run that was killed
    leaves its files, and the next one may have its key.
    """

    def __init__(self, folder: Path, prefix: str, ending: str, since_ns: int = 0) -> None:
        self._folder, self._prefix, self._ending = folder, prefix, ending
        self._since_ns = since_ns
        self._asked = folder / f"{prefix}asked{ending}"
        self._own: set[Path] = set()

    def ask(self) -> None:
        """Leave a question for all.

        Raises:
            OSError: it cannot be written.
        """
        self._put(self._asked, secrets.token_bytes(8))

    def question(self) -> str:
        """Return the last question; "" if there was none."""
        return self._read(self._asked).hex()

    def post(self, name: str, data: bytes) -> None:
        """Say something.

        Raises:
            OSError: it cannot be written.
        """
        if len(data) <= LARGEST_BYTES:
            self._put(self._path(name), data)

    def read(self) -> Answers:
        """Return the answers that are not damaged."""
        return {name: data for name, path in self._told() if (data := self._read(path))}

    def read_one(self, name: str) -> bytes:
        """Return what one name said; nothing if it said nothing."""
        return self._read(self._path(name))

    def close(self) -> None:
        """Remove what this process wrote."""
        for path in self._own:
            with suppress(OSError):
                path.unlink()

    def _path(self, name: str) -> Path:
        return self._folder / f"{self._prefix}told-{name}{self._ending}"

    def _told(self) -> Iterator[tuple[str, Path]]:
        start = f"{self._prefix}told-"
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.startswith(start) and entry.name.endswith(self._ending):
                    yield entry.name[len(start) :].removesuffix(self._ending), Path(entry.path)

    def _read(self, path: Path) -> bytes:
        with suppress(OSError):
            if os.stat(path, follow_symlinks=False).st_mtime_ns > self._since_ns:
                return notes.read(path, LARGEST_BYTES)
        return b""

    def _put(self, path: Path, data: bytes) -> None:
        notes.put(path, data)
        self._own.add(path)


class StoreBoard:
    """The store of the default group, over a connection of dsprof's own."""

    def __init__(self, connect: Callable[[], Any], prefix: str) -> None:
        self._connect, self._prefix = connect, prefix
        self._posted: set[str] = set()

    def ask(self) -> None:
        """Leave a question for all; whatever the store raises is raised."""
        self._connect().add(f"{self._prefix}/asked", 1)

    def question(self) -> str:
        """Return the last question; "" if there was none."""
        return str(self._connect().add(f"{self._prefix}/asked", 0) or "")

    def post(self, name: str, data: bytes) -> None:
        """Say something; the name is listed only once its value is there."""
        if len(data) > LARGEST_BYTES:
            return
        store = self._connect()
        store.set(self._key(name), data)
        if name not in self._posted:
            store.append(f"{self._prefix}/names", f"{name},")
            self._posted.add(name)

    def read(self) -> Answers:
        """Return all answers, in two requests for any number of writers."""
        store, listed = self._connect(), f"{self._prefix}/names"
        if not store.check([listed]):
            return {}
        names = bytes(store.get(listed)).decode("ascii", errors="replace").split(",")
        names = [*dict.fromkeys(filter(None, names))][:MOST_WRITERS]
        values = store.multi_get([*map(self._key, names)])
        told = zip(names, map(bytes, values), strict=True)
        return {name: data for name, data in told if len(data) <= LARGEST_BYTES}

    def read_one(self, name: str) -> bytes:
        """Return what one name said; nothing if it said nothing."""
        store, key = self._connect(), self._key(name)
        return bytes(store.get(key))[:LARGEST_BYTES] if store.check([key]) else b""

    def _key(self, name: str) -> str:
        return f"{self._prefix}/told/{name}"


Board = FileBoard | StoreBoard
"""A place that writers write to under their names, and all read."""
