"""Operations that a backend launches together: NCCL's groups, `batch_isend_irecv`.

Between `_start_coalescing` and `_end_coalescing` a backend only collects. Those inside get no Work
that anybody waits for: the one that `_end_coalescing` returns is for all of them. Synchronous
ones over NCCL have none from torch 2.8 on: the current stream runs them all when it ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any

from dsprof.hooks.base import Hook, Target, hide_from_dynamo
from dsprof.hooks.wire.process_group import Apart
from dsprof.recording.recorder.recorder import Recorder


class CoalescingHook(Hook):
    """Marks what is launched together, and knows the Work of the batch."""

    name = "coalescing"
    targets = (
        Target(
            *("torch.distributed", "ProcessGroup", "_start_coalescing"),
            "operations from here on are launched together",
            carries="batches of coalesced collectives",
        ),
        Target(
            *("torch.distributed", "ProcessGroup", "_end_coalescing"),
            "launches them, and returns what to wait for",
            carries="waits for coalesced collectives",
        ),
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._open: dict[int, Apart] = {}  # thread -> what it collects
        self._has_begun = False

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        hook, hot = self, self.recorder.hot
        starts = target.name == "_start_coalescing"

        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if hot.recording and not hook.broken:
                try:
                    hook._start() if starts else hook._end(result)
                except Exception as error:
                    hook.fail(error)
            return result

        hide_from_dynamo(method)
        return method

    def _end_step(self, step: int) -> None:
        self._close()

    def _start(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            # An exception in between keeps torch from ending it.
            self.recorder.progress.step_listeners.append(self._end_step)
        self._close()
        self._open[get_ident()] = Apart(self.recorder, coalesced=next(self.recorder.ids))

    def _end(self, work: Any) -> None:
        collected = self._close()
        if collected is not None:
            self.recorder.in_flight.join(collected.context.coalesced, work)

    def _close(self) -> Apart | None:
        collected = self._open.pop(get_ident(), None)
        if collected is not None:
            collected.end()
        return collected
