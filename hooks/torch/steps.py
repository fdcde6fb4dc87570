"""Steps and phases where no library marks them: torch's own backward and optimizers.

An optimizer step that follows a backward ends a training step. Further optimizers that step on the
same gradients belong to it, as do those inside an optimizer (ZeroRedundancyOptimizer) and those
that step within backward. Two models with a backward each, such as a GAN's, make two steps. A step
on zeros that only makes the state of an optimizer, as before a checkpoint is loaded, is none.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.jit._builtins as jit

from dsprof.hooks.base import Hook, Target, hide_from_dynamo, nothing
from dsprof.hooks.torch.training_loop import Loop
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Phase

_MOST_STEPS = 1 << 62

_task = torch._C._current_graph_task_id  # -1 unless autograd is at work


class TrainingLoopHook(Hook):
    """Marks backward and optimizer steps, and counts steps unless an engine or the user does."""

    name = "torch.loop"
    targets = (Target("torch.autograd", "", "backward", "phase backward; counts micro-steps"),)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._loop = recorder.shared(Loop)
        self._handles: list[Any] = []
        self._wrappers: list[Callable[..., Any]] = []
        self._has_backward = False  # since the last step
        self._had_backward = False  # ever
        self._stepped = False  # within the current backward
        self._stepped_in = -1  # that task of autograd
        recorder.progress.step_listeners.append(self._forget)

    def modules(self) -> tuple[str, ...]:
        return ("torch.autograd", "torch.optim.optimizer")

    def install(self, module: str) -> None:
        """Register the hooks that torch offers before and after each optimizer's step."""
        if module != "torch.optim.optimizer":
            return
        from torch.optim import optimizer

        self._loop.step_code = optimizer.Optimizer.profile_hook_step(nothing).__code__
        before = self._guard(self._begin_step, begins=True)
        after = self._guard(self._end_step)
        self._handles = [
            optimizer.register_optimizer_step_pre_hook(before),
            optimizer.register_optimizer_step_post_hook(after),
        ]

    def uninstall(self) -> None:
        for handle in self._handles:
            handle.remove()
        for wrapper in self._wrappers:
            jit._get_builtin_table().pop(id(wrapper), None)

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        hot, loop, is_compiling = self.recorder.hot, self._loop, torch.compiler.is_dynamo_compiling
        method = self.around(original, self._begin_backward, self._end_backward)

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            # Nothing to do: an engine, or an outer call, is in backward already.
            if is_compiling() or (hot.phase == "backward" and loop.forward is None):
                return original(*args, **kwargs)
            return method(*args, **kwargs)

        hide_from_dynamo(backward)
        self._wrappers.append(backward)
        jit._register_builtin(backward, "aten::backward")  # it knows functions by their identity
        return backward

    def _guard(
        self, note: Callable[[Any], None], *, begins: bool = False
    ) -> Callable[[Any, Any, Any], None]:
        hot, switch, is_compiling = self.recorder.hot, self.switch, torch.compiler.is_compiling

        def guarded(optimizer: Any, args: Any, kwargs: Any) -> None:
            if switch.broken or not (hot.recording or (begins and self._arm())):
                return
            if (hot.phase == "step" and self._is_engines()) or is_compiling():
                return
            try:
                note(optimizer)
            except Exception as error:
                self.fail(error)

        hide_from_dynamo(guarded, and_calls=True)
        return guarded

    def _arm(self) -> bool:
        """Start recording: local SGD takes many steps before its first collective."""
        return not torch.compiler.is_compiling() and self.recorder.arm(at_collective=False)

    def _begin_backward(self, *args: Any, **kwargs: Any) -> Phase | None:
        if self._stepped and self.recorder.hot.phase != "backward":
            self._end_steps_in_backward()  # of one that began before the recording
        return self._loop.begin_backward()

    def _end_backward(self, begun: Phase | None) -> None:
        if begun is None:
            return
        self._loop.end_backward(begun)
        self._has_backward = self._had_backward = True
        if self._stepped:
            self._end_steps_in_backward()

    def _end_steps_in_backward(self) -> None:
        self._stepped = False
        self.recorder.progress.end_step("optimizer")

    def _is_engines(self) -> bool:
        """Tell whether the optimizer step in progress is an engine's, whose steps are counted."""
        progress = self.recorder.progress
        return bool(progress.steps) and progress.step_source == "deepspeed" and not self._loop.steps

    def _begin_step(self, optimizer: Any) -> None:
        is_next = self._stepped and _task() not in (-1, self._stepped_in)
        if is_next and self.recorder.hot.phase != "backward":
            self._end_steps_in_backward()  # of torch.autograd.grad(), whose end is not seen
        steps = self._loop.steps
        if steps:
            self._loop.leave_steps(self._loop.running_steps() - 1)
        is_own = not self._loop.has_engine and not self.recorder.hot.phase
        steps.append(self.recorder.progress.enter("step") if is_own else None)

    def _end_step(self, optimizer: Any) -> None:
        steps = self._loop.steps
        if steps:
            self._loop.leave_steps(self._loop.running_steps() - 1 if len(steps) > 1 else 0)
        if steps:  # inside another optimizer's step
            return
        progress = self.recorder.progress
        if not (progress.steps or self._loop.has_engine):
            progress.taken_before = max(_steps_of(optimizer) - 1, -1)
        if not self._loop.has_engine and (self.recorder.hot.phase == "backward" or _task() != -1):
            self._stepped, self._stepped_in = True, _task()
        elif self._has_backward or not (self._had_backward or _makes_state()):
            self._stepped = False
            progress.end_step("optimizer")

    def _forget(self, step: int) -> None:
        self._has_backward = self._loop.after_backward = False


def _makes_state() -> bool:
    """Tell whether a function such as torch's `_init_optim_state` called the optimizer."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if "init" in frame.f_code.co_name and "state" in frame.f_code.co_name:
            return True
        frame = frame.f_back
    return False


def _steps_of(optimizer: Any) -> int:
    """Return how many steps an optimizer has taken, including those before a restart.

    -1 if it does not count, or only on the device, which would have to be waited for.
    """
    states = optimizer.state.values() if isinstance(optimizer.state, dict) else ()
    state = next(iter(states), None)
    steps: Any = state.get("step") if isinstance(state, dict) else None
    if type(steps) is torch.Tensor and steps.device.type == "cpu" and steps.numel() == 1:
        steps = steps.item()
    return int(steps) if isinstance(steps, (int, float)) and 0 <= steps < _MOST_STEPS else -1
