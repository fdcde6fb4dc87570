"""The store of the default process group: found, named, and asked for no longer than it may take.

Questions have a connection and a thread of their own, which is not waited for.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from hashlib import blake2b
from typing import Any, TypeVar

from dsprof.trace.schema import Header

T = TypeVar("T")

Fail = Callable[[Exception], object]

PATIENCE_S = 3.0
"""A store or a folder that takes longer to answer gives no answer."""


def connect(store: Any) -> Any:
    """Return a connection of our own to a store; raises what torch does."""
    return sys.modules["torch.distributed"].TCPStore(
        store.host,
        store.port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=PATIENCE_S),
    )


def default_store() -> Any:
    """Return the store of the default group; None if there is none, or nothing like a server."""
    with suppress(Exception):
        dist = sys.modules["torch.distributed"]
        store = innermost_store(dist)
        return store if isinstance(store, dist.TCPStore) else None
    return None


def name_of_run(header: Header) -> str:
    """Return a name that no other live run has: those with the key of this one meet elsewhere."""
    text = f"{header.run_key} {store_address()}"
    return blake2b(text.encode(), digest_size=8).hexdigest()


def number_of_run(header: Header) -> int:
    """Return the same as a number, as live states have it."""
    return int(name_of_run(header)[:15], 16)


def store_address() -> str:
    """Return the port or the file of the default group's store; "": it has none, or is unknown.

    Ranks may name the host of a server differently.
    """
    if (server := default_store()) is not None:
        return str(server.port)
    with suppress(Exception):
        return str(innermost_store(sys.modules["torch.distributed"]).path)  # of a FileStore
    return ""


def innermost_store(dist: Any) -> Any:
    """Return the store below all prefixes; raises what torch does."""
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def within(ask: Callable[[], T], fail: Fail) -> T | None:
    """Return the answer; None if it fails, or does not come in time."""
    return Questions(fail).within(ask)


class Questions:
    """Asks one question at a time: a store that is stopped would hold a thread for each.

    `fail` gets errors that are no answer of a store or a folder, but mistakes of dsprof.
    """

    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self._thread: threading.Thread | None = None

    def within(self, ask: Callable[[], T]) -> T | None:
        """Return the answer; None if it fails, is late, or an earlier one is still awaited."""
        if self._thread is not None and self._thread.is_alive():
            return None
        answers: list[T] = []

        def run() -> None:
            try:
                answers.append(ask())
            except (OSError, RuntimeError, ValueError):
                pass  # a folder, a store (torch raises RuntimeError), or what one of them holds
            except Exception as error:  # noqa: BLE001 - it ends this thread; training goes on
                self._fail(error)

        thread = threading.Thread(target=run, name="dsprof-exchange", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system grants no more threads, for now
            return None
        self._thread = thread
        thread.join(PATIENCE_S)
        return answers[0] if answers else None
