"""What an engine does between its phases, as spans like those of `dsprof.annotate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsprof.hooks.base import Hook, Target
from dsprof.hooks.deepspeed.owners import ENGINE
from dsprof.trace.scope import clock

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
        recorder = self.recorder
        return self.around(
            original,
            lambda *args, **kwargs: (recorder.progress.scope, clock()),
            lambda begun: recorder.annotate(target.name, *begun),
        )
