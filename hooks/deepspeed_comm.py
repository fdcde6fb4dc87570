"""What was asked of deepspeed.comm: the requested side of each collective.

All of deepspeed.comm passes through the methods of the backend class, looked up at each call, so
patching the class sees names that were imported early. Nothing is recorded for a request that
reaches c10d: the wire hook does that, and finds the request in the thread's context.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
import torch.distributed as dist

from dsprof.events import Collective, Context
from dsprof.hooks.base import Hook, Target
from dsprof.hooks.groups import Groups
from dsprof.hooks.sites import Sites
from dsprof.recorder import Recorder, clock

_METHODS = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "inference_all_reduce",
    "irecv",
    "isend",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)
_Call = tuple[Context, Context, tuple[Any, ...], dict[str, Any], int]
_BACKENDS = (("deepspeed.comm.torch", "TorchBackend"), ("deepspeed.comm.ccl", "CCLBackend"))


class DeepSpeedCommHook(Hook):
    """Marks what each call into deepspeed.comm asked for."""

    name = "deepspeed.comm"
    targets = tuple(
        Target(module, owner, method, "names the requested operation", optional=True)
        for module, owner in _BACKENDS
        for method in _METHODS
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._groups = Groups.of(recorder)
        self._sites = Sites(recorder)

    def patches(self, module: str) -> list[Any]:
        """Patch only what a class defines itself: a method that CCLBackend inherits is patched."""
        return [patch for patch in super().patches(module) if patch.name in vars(patch.owner)]

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        op, recorder = target.name, self.recorder
        next_id = recorder.ids.__next__

        def before(backend: Any, *args: Any, **kwargs: Any) -> _Call | None:
            outer = recorder.context()
            if outer.request:  # a call that deepspeed.comm makes for itself
                return None
            context = Context(next_id(), op, outer.flush, outer.fetch)
            recorder.become(context)
            return outer, context, args, kwargs, clock()

        def after(call: _Call | None) -> None:
            if call is not None:
                recorder.become(call[0])
                if not call[1].wire_ops:
                    self._record_unseen(*call[1:])

        return self.around(original, before, after)

    def _record_unseen(
        self, context: Context, args: tuple[Any, ...], kwargs: dict[str, Any], start_ns: int
    ) -> None:
        """Record a request that never reached c10d: shared memory, SDMA, a library of its own."""
        now_ns = clock()
        tensors = _tensors([*args, *kwargs.values()])
        first = tensors[0] if tensors else None
        group = kwargs.get("group") or dist.group.WORLD
        self.recorder.add(
            Collective(
                next(self.recorder.ids),
                context.requested,
                self._groups.state(group).group,
                0,
                first.nbytes if first is not None else 0,
                first.numel() if first is not None else 0,
                min(len(tensors), 1),
                str(first.dtype).removeprefix("torch.") if first is not None else "",
                bool(kwargs.get("async_op", False)),
                None,
                -1,
                self._sites.above(3),
                self.recorder.scope,
                context,
                get_ident(),
                start_ns,
                now_ns,
                done_ns=now_ns,
                blocked_ns=now_ns - start_ns,
                on_wire=False,
            )
        )


def _tensors(values: list[Any]) -> list[torch.Tensor]:
    """Return the tensors among arguments, those in lists included."""
    found: list[torch.Tensor] = []
    for value in values:
        parts = value if isinstance(value, (list, tuple)) else (value,)
        found.extend(part for part in parts if isinstance(part, torch.Tensor))
    return found
