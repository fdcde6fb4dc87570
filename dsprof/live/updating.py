"""A site that follows a run: its pages are of the newest judgement."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Event
from time import thread_time

from dsprof.errors import DsprofError
from dsprof.live.judging import REST
from dsprof.live.site import Site

_SHORTEST_REST_S = 5.0


class UpdatingSite:
    """Judges the run again and again while it grows."""

    def __init__(self, load: Callable[[], Site]) -> None:
        """Judge it a first time.

        Raises:
            DsprofError: there is no run yet, or it cannot be read.
        """
        self._load, self._site = load, load()

    def page(self, path: str) -> bytes | None:
        """Return a page of the newest judgement; None where there is none."""
        return self._site.page(path)

    @property
    def is_growing(self) -> bool:
        """Whether the run went on when it was last judged."""
        return self._site.is_growing

    def follow(self, stopped: Event) -> None:
        """Judge until the run is over, with 4 % of a core."""
        took_s = 0.0
        while self.is_growing and not stopped.wait(max(REST * took_s, _SHORTEST_REST_S)):
            began_s = thread_time()
            with suppress(DsprofError, MemoryError):  # what is known stays; it may go on later
                self._site = self._load()
            took_s = thread_time() - began_s
