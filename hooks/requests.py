"""What a library above c10d asks for, as the collectives within a call of it will tell."""

from __future__ import annotations

import msgspec

from dsprof.events import Context
from dsprof.recorder import Recorder


def begin_request(recorder: Recorder, requested: str) -> Context | None:
    """Communicate for a request from now on, in this thread; None if it serves another request.

    Returns what this thread communicated for before, which `end_request` puts back.
    """
    outer = recorder.context()
    if outer.request:
        return None
    number = next(recorder.ids)
    recorder.become(msgspec.structs.replace(outer, request=number, requested=requested, wire_ops=0))
    return outer


def end_request(recorder: Recorder, outer: Context | None) -> None:
    """Communicate on behalf of `outer` again."""
    if outer is not None:
        recorder.become(outer)
