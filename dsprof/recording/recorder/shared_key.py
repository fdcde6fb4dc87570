"""A key that the ranks of a run share and no file holds: by it they compare what is redacted.

Each rank proposes a key to the store of the default process group; the first one counts. The
request needs no other rank. It does queue behind a `wait` of another thread, which holds the lock
of the store's client: so it has its own thread, which is not waited for long.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from hashlib import blake2b
from threading import Thread
from typing import Any

from dsprof.recording.group_store import innermost_store

_NAME = "dsprof/key"
_KEY_BYTES = 32
_PATIENCE_S = 0.3
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{6,}")
"""In the text of an object: it differs between any two processes."""


class SharedKey:
    """Makes digests of redacted values; "" as long as there is no key."""

    def __init__(self) -> None:
        self._key = b""
        self._thread: Thread | None = None

    def agree(self, dist: Any) -> None:
        """Ask the store of the default group, without waiting for the answer; never raises."""
        with suppress(Exception):
            store = dist.distributed_c10d._get_default_store()
            # Those of FileStore and of others are on a disk.
            if type(innermost_store(dist)) in (dist.TCPStore, dist.HashStore):
                self._thread = Thread(
                    target=self._exchange, args=(store,), name="dsprof-key", daemon=True
                )
                self._thread.start()

    def wait(self) -> None:
        """Wait for the answer for a moment."""
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)

    def digest(self, name: str, value: str) -> str:
        """Return a digest of `value` as the value of `name`: "key id-digest", both hexadecimal.

        Equal digests of two ranks mean equal values; those of two keys have different ids.
        """
        if not self._key or _ADDRESS.search(value):
            return ""
        text = f"{name}\0{value}".encode(errors="replace")
        own = blake2b(text, key=self._key, digest_size=8).hexdigest()
        return f"{blake2b(key=self._key, digest_size=4).hexdigest()}-{own}"

    def _exchange(self, store: Any) -> None:
        with suppress(Exception):
            found = store.compare_set(_NAME, "", os.urandom(_KEY_BYTES).hex())
            key = bytes.fromhex(found.decode())
            self._key = key if len(key) == _KEY_BYTES else b""
