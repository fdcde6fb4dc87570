"""Requests of a library above c10d, recorded with the collectives within its call."""

from __future__ import annotations

from dsprof.recording.recorder.hot_state import Context
from dsprof.recording.recorder.recorder import Recorder

Request = tuple[Context, Context]
"""The earlier state of a thread, which `end_request` puts back, and its purpose.

No NamedTuple: making one takes as long as all else that begins a request.
"""


def begin_request(recorder: Recorder, requested: str) -> Request | None:
    """Communicate for a request from now on, in this thread; None if it serves another request."""
    outer = recorder.contexts.current()
    if outer.request:
        return None
    number, coalesced = next(recorder.ids), outer.coalesced
    context = Context(number, requested, outer.flush, outer.fetch, 0, coalesced, outer.site)
    recorder.contexts.become(context)
    return outer, context


def end_request(recorder: Recorder, request: Request | None) -> None:
    """Communicate on behalf of others again."""
    if request is not None:
        recorder.contexts.become(request[0])
