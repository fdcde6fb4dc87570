"""What an engine does between its phases, as spans like those of `dsprof.annotate`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from dsprof.hooks.base import Hook, Target
from dsprof.hooks.deepspeed.owners import ENGINE
from dsprof.trace.scope import Scope, clock

_MOVED = ("spans of states that are offloaded between steps", "0.15.2")


class DeepSpeedPartsHook(Hook):
    """Names checkpoints and moved states: they can take longer than the training step."""

    name = "deepspeed.parts"
    targets = (
        Target(*ENGINE, "save_checkpoint", "takes time between steps"),
        Target(*ENGINE, "load_checkpoint", "takes time before the first step"),
        Target(*(*ENGINE, "offload_states", "takes time between steps"), *_MOVED),
        Target(*(*ENGINE, "reload_states", "takes time between steps"), *_MOVED),
    )

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        return self.around(original, self._begin, functools.partial(self._end, target.name))

    def _begin(self, *args: Any, **kwargs: Any) -> tuple[Scope, int]:
        return self.recorder.progress.scope, clock()

    def _end(self, name: str, begun: tuple[Scope, int]) -> None:
        self.recorder.annotate(name, *begun)


HOOK = DeepSpeedPartsHook
