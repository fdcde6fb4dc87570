"""torch.distributed.pipelining: phases of each micro-batch, and what is sent between stages."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch.distributed as dist

from dsprof.hooks.base import Hook, Target
from dsprof.hooks.wire.groups import Groups
from dsprof.hooks.wire.requests import Request, begin_request, end_request
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Phase

_STAGE = ("torch.distributed.pipelining.stage", "_PipelineStageBase")
_PHASES = {
    "forward_one_chunk": "forward",
    "backward_one_chunk": "backward",
    "backward_weight_one_chunk": "backward",
}
_TRANSFERS = {
    "get_fwd_send_ops": "activation from stage",
    "get_fwd_recv_ops": "activation to stage",
    "get_bwd_send_ops": "gradient from stage",
    "get_bwd_recv_ops": "gradient to stage",
}


class PipeliningHook(Hook):
    """Marks what a stage computes, the micro-batch being the micro-step, and what it sends.

    A stage lists its transfers, and the schedule issues them, some of several lists at once.
    """

    name = "pipelining"
    targets = (
        *(
            Target(
                *(*_STAGE, method, f"phase {phase} of a micro-batch", f"phases by {method}"),
                since="2.5" if method == "backward_weight_one_chunk" else "",
            )
            for method, phase in _PHASES.items()
        ),
        *(
            Target(*_STAGE, method, f"lists transfers: {what}", f"names of transfers: {what}")
            for method, what in _TRANSFERS.items()
        ),
        Target(
            "torch.distributed.pipelining.schedules",
            "",
            "_batch_p2p",
            "issues transfers",
            carries="requests of transfers between stages",
        ),
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._roles = recorder.shared(Groups).roles
        self._transfers: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        if target.name in _TRANSFERS:
            return self._wrap_list(_TRANSFERS[target.name], original)
        if target.name == "_batch_p2p":
            end = functools.partial(end_request, self.recorder)
            return self.around(original, self._begin_batch, end)
        before = functools.partial(self._begin, _PHASES[target.name])
        return self.around(original, before, self.recorder.progress.leave)

    def _begin(self, phase: str, stage: Any, chunk: int, *args: Any, **kwargs: Any) -> Phase:
        self._roles.setdefault(stage.group or dist.group.WORLD, "pipeline")
        entered = self.recorder.progress.enter(phase, micro_step=chunk)
        entered.stage = stage.stage_index
        return entered

    def _wrap_list(self, what: str, original: Callable[..., Any]) -> Callable[..., Any]:
        hook, recorder, transfers = self, self.recorder, self._transfers
        hot = recorder.hot

        @functools.wraps(original)
        def method(stage: Any, *args: Any, **kwargs: Any) -> Any:
            listed = original(stage, *args, **kwargs)
            if hot.recording and not hook.broken:
                try:
                    for transfer in listed:
                        transfers[transfer] = f"{what} {stage.stage_index}"
                except Exception as error:
                    hook.fail(error)
            return listed

        return method

    def _begin_batch(self, listed: Iterable[Any], *args: Any, **kwargs: Any) -> Request | None:
        known = dict.fromkeys(self._transfers[t] for t in listed if t in self._transfers)
        return begin_request(self.recorder, ", ".join(known)) if known else None
