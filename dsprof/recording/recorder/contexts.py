"""On whose behalf each thread communicates."""

from __future__ import annotations

from threading import get_ident

from dsprof.recording.recorder.hot_state import NOBODY, Context, HotState, compiled


class Contexts:
    """Hooks of meaning set the context of their thread; the hook of the wire reads it.

    Each thread touches its own entry only, so there is no lock.
    """

    def __init__(self, hot: HotState) -> None:
        self._by_thread: dict[int, Context] = {}
        if compiled is not None:
            self.current = hot.current  # type: ignore[method-assign]
            self.become = hot.become  # type: ignore[method-assign, assignment]

    def current(self) -> Context:
        """Return on whose behalf this thread communicates: `NOBODY` for the user himself."""
        return self._by_thread.get(get_ident(), NOBODY)

    def become(self, context: Context) -> None:
        """Communicate on behalf of `context` from now on, in this thread."""
        self._by_thread[get_ident()] = context


def flushing(outer: Context, flush: int, site: int) -> Context:
    """Return what to become for a flush; `site` is that of the phase.

    It belongs to the line that called backward: autograd's own thread has no frame of that, and
    where there is one, the walk up to it costs more than the record.
    """
    return Context(outer.request, outer.requested, flush, outer.fetch, 0, 0, site)
