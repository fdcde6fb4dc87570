"""The group of DeepSpeed-Ulysses: made by the user, so only the attention that gets it knows it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from dsprof.hooks.base import Hook, Target
from dsprof.hooks.wire.groups import Groups


class DeepSpeedSequenceHook(Hook):
    """Says which groups are for sequence parallelism."""

    name = "deepspeed.sequence"
    targets = (
        Target("deepspeed.sequence.layer", "DistributedAttention", "forward", "holds the group"),
    )

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        hook, recorder, is_compiling = self, self.recorder, torch.compiler.is_compiling

        roles = recorder.shared(Groups).roles

        # Also while nothing is recorded: the first collective may be the one inside.
        @functools.wraps(original)
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not (is_compiling() or recorder.stopped or hook.broken):
                try:
                    roles[self.spg] = "sequence"
                except Exception as error:
                    hook.fail(error)
            return original(self, *args, **kwargs)

        return forward
