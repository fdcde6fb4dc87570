"""Phases and micro-steps of a plain torch loop, for the hooks that see their begins and ends.

A micro-step is one forward and backward: it ends where, after a backward, the next forward of a
DDP or FSDP model in training or the next backward begins. An engine of DeepSpeed marks its own
phases.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

import torch

from dsprof.hooks.call_sites import Sites
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Phase


class Loop:
    """State that hooks on a plain torch loop share.

    The thread that trains touches it, and autograd's while that one waits, so there is no lock.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.has_engine = False
        self.forward: Phase | None = None  # the one that is open
        self.step_code: CodeType | None = None  # of torch's function around each optimizer's step
        self.steps: list[Phase | None] = []  # of optimizers, the outermost first
        self.after_backward = False  # and neither a forward nor a step has begun since
        self._progress, self._hot = recorder.progress, recorder.hot
        self._sites = recorder.shared(Sites)

    def begin_forward(self, model: Any) -> Phase | None:
        """Begin the forward of an outermost model; None in a backward: recomputation is no phase.

        Inside an optimizer's step it is that of a closure, which is how Lightning trains.
        """
        if self.has_engine or self._hot.phase not in ("", "step"):
            return None
        if self.steps:
            self.leave_steps(self.running_steps())
        if self.after_backward and model.training and torch.is_grad_enabled():
            self._end_micro_step()
        self.forward = self._progress.enter("forward")
        return self.forward

    def end_forward(self, phase: Phase | None) -> None:
        """End a forward, unless a backward that it never got to see has ended it."""
        if phase is not None and self.forward is phase:
            self.forward = None
            self._progress.leave(phase)

    def begin_backward(self) -> Phase | None:
        """Begin an outermost backward; None inside of another, or of an engine's."""
        if self.forward is not None:  # a model whose end was not seen
            self.end_forward(self.forward)
        if self.has_engine or self._hot.phase == "backward":
            return None
        if self.steps:
            self.leave_steps(self.running_steps())
        self._end_micro_step()
        return self._progress.enter("backward", site=self._sites.here())

    def end_backward(self, phase: Phase | None) -> None:
        """End a backward."""
        if phase is not None:
            self._progress.leave(phase)
            self.after_backward = True

    def running_steps(self) -> int:
        """Count the optimizers that are inside their step.

        torch calls no hook after a step that raised, so what the hooks noted may be more. Keeping
        a frame to look for would keep the user's tensors alive, and its address is reused.
        """
        count = 0
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            count += frame.f_code is self.step_code
            frame = frame.f_back
        return count

    def leave_steps(self, depth: int) -> None:
        """End the steps of all optimizers but the `depth` outermost ones."""
        for phase in reversed(self.steps[depth:]):
            if phase is not None:
                self._progress.leave(phase)
        del self.steps[depth:]

    def _end_micro_step(self) -> None:
        if self.after_backward:
            self.after_backward = False
            self._progress.end_micro_step()
