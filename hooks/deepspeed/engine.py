"""Steps and phases of DeepSpeed engines, each engine on its own.

`_backward_prologue` and `_backward_epilogue` mark the backward phase also where the user calls
`loss.backward()` himself; `engine.backward` adds the reduction that follows it at stages 0 and 1.
A pipeline engine runs a schedule of instructions instead: see `deepspeed_pipeline`.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable
from typing import Any

from dsprof.hooks.base import After, Before, Hook, Target, nothing
from dsprof.hooks.call_sites import Sites
from dsprof.hooks.deepspeed.config import describe
from dsprof.hooks.deepspeed.known_engines import KnownEngines
from dsprof.hooks.deepspeed.owners import ENGINE
from dsprof.hooks.deepspeed.pipeline import INSTRUCTIONS, Schedule
from dsprof.hooks.torch.models import Models
from dsprof.hooks.torch.training_loop import Loop
from dsprof.recording.recorder.hot_state import EngineProgress
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Phase

_PIPELINE = ("deepspeed.runtime.pipe.engine", "PipelineEngine")
_DUAL_PIPE = ("deepspeed.runtime.pipe.dualpipev", "DualPipeVEngine")
_BACKWARD, _SINCE_BACKWARD = "phases of loss.backward()", "0.16.9"
_HYBRID = ("deepspeed.runtime.hybrid_engine", "DeepSpeedHybridEngine")

_IN_C = {
    "forward": (0, "forward"),
    "backward": (1, "backward"),
    "step": (2, "step"),
    "_backward_prologue": (3, "backward"),
    "_backward_epilogue": (4, ""),
    "_take_model_step": (5, ""),
}
"""Methods whose usual case is in C: their number there, and the phase that they begin."""


class DeepSpeedEngineHook(Hook):
    """Follows every engine through forward, backward and step."""

    name = "deepspeed.engine"
    targets = (
        Target(*ENGINE, "__init__", "its trial optimizer step is no training step"),
        Target(*ENGINE, "forward", "phase forward"),
        Target(*ENGINE, "backward", "phase backward, reduction at its end included"),
        Target(
            *(*ENGINE, "_backward_prologue", "start of loss.backward()"),
            *(_BACKWARD, _SINCE_BACKWARD),
        ),
        Target(
            *(*ENGINE, "_backward_epilogue", "end of loss.backward()"),
            *(f"ends of {_BACKWARD}", _SINCE_BACKWARD),
        ),
        Target(*ENGINE, "step", "phase step; ends a micro-step"),
        Target(*ENGINE, "_take_model_step", "ends an optimizer step"),
        Target(*_PIPELINE, "train_batch", "ends an optimizer step"),
        Target(*_PIPELINE, "_exec_schedule", "begins the count of micro-batches"),
        Target(*_PIPELINE, INSTRUCTIONS, "a phase for each instruction"),
        Target(
            *(*_DUAL_PIPE, INSTRUCTIONS, "a phase for each instruction"),
            *("phases of DualPipeV", "0.19.8"),
        ),
        Target(*_HYBRID, "generate", "phase generate"),
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        # By identity, which another object may have later: hence the weakref.
        self._engines: dict[int, tuple[weakref.ref[Any], EngineProgress]] = {}
        self._numbers = itertools.count()
        self._being_made = 0
        self._loop = recorder.shared(Loop)
        self._known_engines = recorder.shared(KnownEngines)
        self._sites, self._models = recorder.shared(Sites), recorder.shared(Models)
        self._count_step = functools.partial(recorder.progress.end_step, "deepspeed")
        recorder.trace_listeners.append(self._begin_again)

    def wrap(self, target: Target, original: Any) -> Any:
        if target.name == "__init__":
            return self._wrap_init(original)
        if target.name == INSTRUCTIONS:
            return {kind: self._wrap_instruction(kind, run) for kind, run in original.items()}
        around: dict[str, tuple[Before, After]] = {
            "forward": (functools.partial(self._begin, "forward"), self._end),
            "backward": (functools.partial(self._begin, "backward"), self._end),
            "_backward_prologue": (self._open, nothing),
            "_backward_epilogue": (self._progress, self._close),
            "step": (self._begin_step, self._end_step),
            "_take_model_step": (self._progress, self._took_step),
            "train_batch": (self._enter_call, self._end_batch),
            "_exec_schedule": (self._begin_schedule, nothing),
            "generate": (functools.partial(self._begin, "generate"), self._end),
        }
        is_step = target.name == "_take_model_step"  # no step is taken if it raises
        method = self.around(original, *around[target.name], also_if_raised=not is_step)
        if target.name not in _IN_C:
            return method
        number, phase = _IN_C[target.name]
        held = (self._engines, phase, self._sites.here, self._count_step)
        return self.in_c("engine", original, method, held, (number,))

    def _wrap_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hook = self

        @functools.wraps(original)
        def init(*args: Any, **kwargs: Any) -> None:
            try:
                hook._expect_steps()
            except Exception as error:
                hook.fail(error)
            hook._being_made += 1
            try:
                original(*args, **kwargs)
            except BaseException:
                hook._being_made -= 1
                hook._give_up()
                raise
            hook._being_made -= 1

        return init

    def _wrap_instruction(self, kind: type, run: Callable[..., Any]) -> Callable[..., Any]:
        def before(engine: Any, *args: Any, **kwargs: Any) -> Phase | None:
            progress = self._progress(engine)
            name, micro_batch = progress.schedule.enter(kind, kwargs)
            progress.micro_step = micro_batch
            return self._enter(name, progress)

        return self.around(run, before, self._end)

    # -- phases -------------------------------------------------------------------------------

    def _begin(self, phase: str, engine: Any, *args: Any, **kwargs: Any) -> Phase | None:
        progress = self._progress(engine)
        if phase == "backward":
            if self.recorder.progress.is_in(phase, progress.number):
                return None
            # Several losses of a step, such as a discriminator's: each reduces the gradients.
            if progress.had_backward:
                self._end_micro_step(progress)
            progress.had_backward = True
            return self._enter(phase, progress)
        if progress.backward is not None:  # open if backward raised
            self._close(progress)
        if phase == "forward":
            if not progress.is_described:
                self._expect_steps()
                progress.is_described = self._models.see("DeepSpeed", engine.module, args, kwargs)
            # Accelerate calls `step` only at the last micro-step. An evaluation in between is none,
            # and a pipeline's schedule counts its own.
            if progress.had_backward and engine.training:
                self._end_micro_step(progress)
        return self._enter(phase, progress)

    def _end_micro_step(self, progress: EngineProgress) -> None:
        progress.had_backward = False
        if not progress.in_step:
            progress.micro_step += 1
            self.recorder.progress.end_micro_step()

    def _enter(self, phase: str, progress: EngineProgress) -> Phase | None:
        """Begin a phase of an engine, unless the engine is in it."""
        training = self.recorder.progress
        if training.is_in(phase, progress.number):
            return None
        site = self._sites.here() if phase == "backward" else 0
        return training.enter(phase, progress.number, progress.micro_step, site)

    def _end(self, begun: Phase | None) -> None:
        if begun is not None:
            self.recorder.progress.leave(begun)

    def _open(self, engine: Any, *args: Any, **kwargs: Any) -> None:
        progress = self._progress(engine)
        progress.backward = self._begin("backward", engine) or progress.backward

    def _close(self, progress: EngineProgress) -> None:
        begun, progress.backward = progress.backward, None
        self._end(begun)

    # -- steps --------------------------------------------------------------------------------

    def _begin_step(
        self, engine: Any, *args: Any, **kwargs: Any
    ) -> tuple[EngineProgress, Phase | None]:
        begun = self._begin("step", engine)
        return self._enter_call(engine), begun

    def _end_step(self, token: tuple[EngineProgress, Phase | None]) -> None:
        progress, begun = token
        progress.in_step = False
        self._end(begun)
        if progress.stepped:
            self._count(progress)
        else:
            self._end_micro_step(progress)

    def _took_step(self, progress: EngineProgress) -> None:
        progress.stepped = True
        if not progress.in_step:
            self._count(progress)

    def _enter_call(self, engine: Any, *args: Any, **kwargs: Any) -> EngineProgress:
        """Enter a call that may end a step or a micro-step."""
        self._ask_steps_before(engine)
        progress = self._progress(engine)
        progress.in_step, progress.stepped = True, False
        return progress

    def _end_batch(self, progress: EngineProgress) -> None:
        progress.in_step = False
        if progress.stepped:
            self._count(progress)

    def _begin_schedule(self, engine: Any, *args: Any, **kwargs: Any) -> None:
        self._progress(engine).schedule.begin()

    def _ask_steps_before(self, engine: Any) -> None:
        """Note the step from which an engine continues after it has loaded a checkpoint."""
        if not self.recorder.progress.steps:
            self.recorder.progress.taken_before = int(getattr(engine, "global_steps", -1))

    def _count(self, progress: EngineProgress) -> None:
        micro_steps, progress.micro_step = progress.micro_step + 1, 0
        progress.had_backward = False
        self._count_step(progress.number, micro_steps)

    def _progress(self, engine: Any, *args: Any, **kwargs: Any) -> EngineProgress:
        """Return the progress of an engine; the writer gets the configuration of a new one."""
        known = self._engines.get(id(engine))
        if known is not None and known[0]() is engine:
            return known[1]
        self.recorder.progress.expect_steps_of("deepspeed")
        progress = EngineProgress(next(self._numbers), Schedule())
        key = id(engine)
        self._engines[key] = weakref.ref(engine, lambda _: self._engines.pop(key, None)), progress
        self._known_engines.tell(engine, progress.number)
        self.recorder.outbox.define(describe(engine, progress.number))
        return progress

    def _expect_steps(self) -> None:
        self.recorder.progress.expect_steps_of("deepspeed")
        self._loop.has_engine = True

    def _give_up(self) -> None:
        """Expect no engine after one that could not be made, unless there are others."""
        try:
            if not self._engines:
                self._begin_again()
        except Exception as error:
            self.fail(error)

    def _begin_again(self) -> None:
        """Follow a plain loop too, until an engine runs: DeepSpeed keeps engines that are done."""
        for _, progress in list(self._engines.values()):
            progress.is_described = False
        if not self._being_made:
            self.recorder.progress.forget_steps_of("deepspeed")
            self._loop.has_engine = False
