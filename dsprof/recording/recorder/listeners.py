"""Listeners: callbacks of which one that fails does not harm the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Listeners(Generic[P]):
    """Calls that are made when something happens, in the thread in which it does.

    Hooks are added as they are made or installed, and never removed.
    """

    def __init__(self, fail: Callable[[str, BaseException], None]) -> None:
        self._calls: list[Callable[P, None]] = []
        self._fail = fail

    def append(self, listener: Callable[P, None]) -> None:
        """Call `listener`, too."""
        self._calls.append(listener)

    def __len__(self) -> int:
        return len(self._calls)

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all; one that breaks fails neither what has happened nor the others."""
        for call in self._calls:
            try:
                call(*args, **kwargs)
            except Exception as error:
                self._fail(call.__qualname__, error)
