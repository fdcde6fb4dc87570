"""The world: a process may leave its group and come back as another rank, or into another world."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from dsprof.hooks.base import Hook, Target


class WorldHook(Hook):
    """Says that there is a new default process group, before anything is sent in it, or none."""

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
        return self.around(original, _is_left, self.recorder.on_world)


def _is_left(pg: Any) -> bool:
    """Say whether the program leaves the group in good order.

    Whoever aborts it after a failure, or destroys it in the `finally` of what failed, does not.
    """
    caller = sys._getframe(2).f_code.co_name  # 1 is the wrapper
    return pg is None and caller == "destroy_process_group" and sys.exc_info()[0] is None
