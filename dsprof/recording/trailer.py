"""The trailer of a trace: how the recording ended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Trailer
from dsprof.trace.writing.writer import TraceWriter

if TYPE_CHECKING:
    from dsprof.recording.watchdog.crash import CrashNotes


def trailer_of(
    recorder: Recorder, crash: CrashNotes | None, started_ns: int, reason: str
) -> Trailer:
    """Return the trailer of a trace that began at `started_ns`, without the writer's part."""
    return Trailer(
        reason=reason,
        exception=_uncaught(crash.exception if crash else None),
        exception_ns=crash.failed_ns - started_ns if crash and crash.failed_ns else 0,
        raised_at=crash.raised_at if crash else "",
        lost=crash.lost if crash else "",
        oom_kills=crash.oom_kills() if crash else 0,
        steps=recorder.progress.steps,
        dropped=recorder.outbox.dropped,
        unmatched_waits=recorder.in_flight.unmatched_waits,
        lost_stalls=recorder.in_flight.lost_stalls,
        given_up=recorder.in_flight.given_up,
        hooks_ns=recorder.cost.total_ns(),
        failed_hooks=recorder.failures,
    )


def with_writer(trailer: Trailer, writer: TraceWriter) -> Trailer:
    """Add the writer's part."""
    return msgspec.structs.replace(
        trailer,
        events=writer.events,
        dropped=trailer.dropped + writer.dropped,
        counted_only_steps=writer.counted_only_steps,
        writer_ns=writer.cpu_ns,
        budget_spent=writer.budget_spent,
        disk_error=writer.disk_error,
        lost_steps=writer.lost_steps,
    )


def _uncaught(noted: type[BaseException] | None) -> str:
    """Return the type of the exception that ends this process.

    "" if none does: at a prompt an exception ends nothing, and Ctrl-C is no failure.
    """
    kind = getattr(sys, "last_type", noted)
    if kind is None or hasattr(sys, "ps1") or issubclass(kind, KeyboardInterrupt):
        return ""
    name: str = kind.__qualname__
    return name if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{name}"
