"""The world: a process may leave its group and come back as another rank, or into another world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsprof.hooks.base import Hook, Target, nothing


class WorldHook(Hook):
    """Says that there is a new default process group, before anything is sent in it."""

    name = "world"
    targets = (
        Target(
            "torch.distributed.distributed_c10d",
            "",
            "_update_default_pg",
            "sets the default group when it is made, shrunk or destroyed",
            after="torch.distributed",
        ),
    )

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        return self.around(original, nothing, self._changed)

    def _changed(self, token: Any) -> None:
        self.recorder.on_new_world()


HOOK = WorldHook
