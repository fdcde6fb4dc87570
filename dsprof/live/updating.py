"""A site that follows a run: its pages are of the newest judgement."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from time import thread_time
from traceback import format_exception_only

from dsprof.errors import DsprofError
from dsprof.live.pacing import REST, used_by_children_s
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
        """Whether the run may hold more than the newest judgement."""
        return self._site.is_growing

    def follow(self, stopped: Event) -> None:
        """Judge until a judgement has seen the end of the run, with 4 % of a core."""
        took_s = 0.0
        while self.is_growing and not stopped.wait(max(REST * took_s, _SHORTEST_REST_S)):
            began_s = _used_s()
            try:
                self._site = self._load()
            except DsprofError as error:  # what is known stays; it may go on later
                self._site.failure = str(error)
            except Exception as error:  # noqa: BLE001 - no other thread would show it
                self._site.failure = format_exception_only(error)[-1].strip()
            took_s = _used_s() - began_s


def _used_s() -> float:
    """Return the CPU time of this thread and of processes that read for it."""
    return thread_time() + used_by_children_s()
