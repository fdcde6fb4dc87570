"""Phases and micro-steps of a plain torch loop, for the hooks that see their begins and ends.

A micro-step is one forward and backward: it ends where, after a backward, the next forward of a
DDP or FSDP model or the next backward begins. An engine of DeepSpeed marks its own phases.
"""

from __future__ import annotations

from dsprof.hooks.call_sites import Sites
from dsprof.recording.recorder import Recorder
from dsprof.trace.schema import Phase


def begin_forward(recorder: Recorder) -> Phase | None:
    """Begin the forward of an outermost model; None in a backward: recomputation is no phase.

    Inside an optimizer's step it is that of a closure, which is how Lightning trains.
    """
    loop = recorder.loop
    if loop.has_engine or recorder.scope.phase not in ("", "step"):
        return None
    _end_micro_step(recorder)
    loop.forward = recorder.enter("forward")
    return loop.forward


def end_forward(recorder: Recorder, phase: Phase | None) -> None:
    """End a forward, unless a backward that it never got to see has ended it."""
    loop = recorder.loop
    if phase is not None and loop.forward is phase:
        loop.forward = None
        recorder.leave(phase)


def begin_backward(recorder: Recorder) -> Phase | None:
    """Begin an outermost backward; None inside of another, or of an engine's."""
    loop = recorder.loop
    end_forward(recorder, loop.forward)  # a model whose end nobody saw
    if loop.has_engine or recorder.scope.phase == "backward":
        return None
    _end_micro_step(recorder)
    return recorder.enter("backward", site=Sites.of(recorder).here())


def end_backward(recorder: Recorder, phase: Phase | None) -> None:
    """End a backward."""
    if phase is not None:
        recorder.leave(phase)
        recorder.loop.after_backward = True


def _end_micro_step(recorder: Recorder) -> None:
    if recorder.loop.after_backward:
        recorder.loop.after_backward = False
        recorder.end_micro_step()
