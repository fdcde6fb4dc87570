"""torch.distributed.pipelining: the forward and backward of each micro-batch as phases."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from dsprof.events import Phase
from dsprof.hooks.base import Hook, Target

_STAGE = ("torch.distributed.pipelining.stage", "_PipelineStageBase")
_PHASES = {
    "forward_one_chunk": "forward",
    "backward_one_chunk": "backward",
    "backward_weight_one_chunk": "backward",
}


class PipeliningHook(Hook):
    """Marks what a stage computes; the micro-batch is the micro-step, sends lie in between."""

    name = "pipelining"
    targets = tuple(
        Target(*_STAGE, method, f"phase {phase} of a micro-batch", optional=True)
        for method, phase in _PHASES.items()
    )

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        return self.around(
            original, functools.partial(self._begin, _PHASES[target.name]), self._end
        )

    def _begin(self, phase: str, stage: Any, chunk: int, *args: Any, **kwargs: Any) -> Phase:
        return self.recorder.enter(phase, micro_step=chunk)

    def _end(self, phase: Phase) -> None:
        self.recorder.leave(phase)
