"""Steps and phases of DeepSpeed engines, and the configuration that an engine came to.

`_backward_prologue` and `_backward_epilogue` mark the backward phase also where the user calls
`loss.backward()` himself; `engine.backward` adds the reduction that follows it at stages 0 and 1.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from dsprof.events import Scope
from dsprof.hooks.base import After, Before, Hook, Target
from dsprof.recorder import Recorder, clock
from dsprof.trace.format import EngineConfig

_MODULE = "deepspeed.runtime.engine"
_OWNER = "DeepSpeedEngine"
_Begun = tuple[Scope, int]  # the scope outside of a phase, and when the phase began


class DeepSpeedEngineHook(Hook):
    """Follows every engine through forward, backward and step."""

    name = "deepspeed.engine"
    targets = (
        Target(_MODULE, _OWNER, "__init__", "its trial optimizer step is no training step"),
        Target(_MODULE, _OWNER, "forward", "phase forward"),
        Target(_MODULE, _OWNER, "backward", "phase backward, reduction at its end included"),
        Target(_MODULE, _OWNER, "_backward_prologue", "start of loss.backward()", optional=True),
        Target(_MODULE, _OWNER, "_backward_epilogue", "end of loss.backward()", optional=True),
        Target(_MODULE, _OWNER, "step", "phase step; ends a micro-step"),
        Target(_MODULE, _OWNER, "_take_model_step", "ends an optimizer step"),
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._described: weakref.WeakSet[Any] = weakref.WeakSet()
        self._stepped = False
        self._in_step = False
        self._open_backward: _Begun | None = None

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        if target.name == "__init__":
            return self._wrap_init(original)
        before, after = self._around[target.name]
        return self.around(original, before, after)

    @property
    def _around(self) -> dict[str, tuple[Before, After]]:
        return {
            "forward": (functools.partial(self._begin, "forward"), self._end),
            "backward": (functools.partial(self._begin, "backward"), self._end),
            "_backward_prologue": (self._open, _nothing),
            "_backward_epilogue": (_nothing, self._close),
            "step": (self._begin_step, self._end_step),
            "_take_model_step": (_nothing, self._took_step),
        }

    def _wrap_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        @functools.wraps(original)
        def init(*args: Any, **kwargs: Any) -> None:
            recorder.step_source = recorder.step_source or "deepspeed"
            original(*args, **kwargs)

        return init

    def _begin(self, phase: str, engine: Any, *args: Any, **kwargs: Any) -> _Begun | None:
        self._describe(engine)
        self.recorder.step_source = self.recorder.step_source or "deepspeed"
        if self.recorder.scope.phase == phase:
            return None
        return self.recorder.enter(phase), clock()

    def _end(self, begun: _Begun | None) -> None:
        if begun is not None:
            self.recorder.leave(*begun)

    def _open(self, engine: Any, *args: Any, **kwargs: Any) -> None:
        self._open_backward = self._begin("backward", engine)

    def _close(self, _: None) -> None:
        begun, self._open_backward = self._open_backward, None
        self._end(begun)

    def _begin_step(self, engine: Any, *args: Any, **kwargs: Any) -> _Begun | None:
        self._in_step, self._stepped = True, False
        return self._begin("step", engine)

    def _end_step(self, begun: _Begun | None) -> None:
        self._in_step = False
        self._end(begun)
        if self._stepped:
            self.recorder.end_step("deepspeed")
        else:
            self.recorder.end_micro_step()

    def _took_step(self, _: None) -> None:
        self._stepped = True
        if not self._in_step:  # a pipeline engine's own schedule
            self.recorder.end_step("deepspeed")

    def _describe(self, engine: Any) -> None:
        """Give the writer the configuration of an engine that is new."""
        if engine not in self._described:
            self.recorder.define(_describe(engine, len(self._described)))
            self._described.add(engine)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing before or after a call."""


def _describe(engine: Any, number: int) -> EngineConfig:
    config = getattr(engine, "_config", None)
    zero = getattr(config, "zero_config", None)
    parameters = [p for p in engine.module.parameters() if p.requires_grad]
    dtype = str(parameters[0].dtype).removeprefix("torch.") if parameters else ""
    return EngineConfig(
        engine=number,
        written=_plain(getattr(config, "_param_dict", {})),
        effective={
            "zero_optimization": _plain(zero),
            **{name: _plain(getattr(config, name, None)) for name in _SETTINGS},
        },
        kind=type(engine).__name__,
        optimizer=type(engine.optimizer).__name__ if engine.optimizer is not None else "",
        parameters=sum(getattr(p, "ds_numel", p.numel()) for p in parameters),
        parameter_dtype=dtype,
    )


_SETTINGS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "communication_data_type",
    "prescale_gradients",
    "gradient_predivide_factor",
    "sparse_gradients_enabled",
    "wall_clock_breakdown",
    "grad_accum_dtype",
)


def _plain(value: Any) -> Any:
    """Turn a configuration into what JSON can say; what it cannot becomes a string."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", by_alias=True)
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
