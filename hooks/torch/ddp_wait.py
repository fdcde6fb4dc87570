"""DDP's hidden waits: its reducer waits for the buckets in C++, when all gradients are there.

    last issue ... all gradients ready |<- reducer waits ->| end of backward

Both ends are seen by callbacks of the autograd engine, which run in the order in which they were
queued: one queued at the first collective of a backward pass runs before the reducer's own, and
what that one queues runs after. The wait lies between; so does the reducer copying what it got
into the gradients. The time is therefore marked as estimated.

Re-entrant checkpoints run backward passes inside of the backward pass, and these have ends of their
own. What is still in flight there is left to an end that comes later. At the end of the outer one
the reducer has waited for all that it has released, although some may call itself complete a moment
later.

With `find_unused_parameters` the last thing issued is a map of the parameters in use, int32. It is
waited for behind the buckets, and what the reducer waits for are these.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from functools import partial
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch.autograd import Variable
from torch.autograd.function import BackwardCFunction

from dsprof.hooks.base import Hook, Target, hide_from_dynamo
from dsprof.trace.schema import Collective
from dsprof.trace.scope import clock

_task = torch._C._current_graph_task_id
_FUNCTION = BackwardCFunction.apply.__code__
_FORWARD = Target(
    "torch.nn.parallel.distributed",
    "DistributedDataParallel",
    "_pre_forward",
    "sends buffers; DDP is in use",
)
_AT_START = tuple(
    Target("torch.distributed", "", name, "waits in C++ for all it sends", f"waits of {name}")
    for name in ("_broadcast_coalesced", "_verify_params_across_processes")
)


class DdpWaitHook(Hook):
    """Estimates how long DDP blocks: in backward, and where it sends buffers or a new model."""

    name = "ddp_wait"
    targets = (_FORWARD, *_AT_START)

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        hook, hot = self, self.recorder.hot
        self._backward = -1  # the backward pass that is being followed
        self._first_ns = 0  # the first issue that this or the next backward waits for
        self._left_to_end = ""  # the operation in a forward that is left to its backward
        is_of_ddp = target.name != "_broadcast_coalesced"  # FSDP sends a new model so, too
        # Join sums up in forward which ranks still train; the reducer waits for that in backward.
        left_to_end = "all_reduce" if target is _FORWARD else ""

        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            if not hot.recording or hook.broken:
                return original(*args, **kwargs)
            if is_of_ddp:
                hook._begin()
            hook._first_ns, hook._left_to_end = 0, left_to_end
            start_ns = clock()
            result = original(*args, **kwargs)
            hook._waited(start_ns, 0, clock(), is_inner=False, left_to_end=left_to_end)
            hook._left_to_end = ""
            return result

        hide_from_dynamo(method)
        hide_from_dynamo(DdpWaitHook._begin, DdpWaitHook._waited, and_calls=True)
        return method

    def _begin(self) -> None:
        """Follow collectives from now on: DDP is in use."""
        try:
            in_flight = self.recorder.in_flight
            if self._follow not in in_flight.followers:
                in_flight.followers += (self._follow,)
        except Exception as error:
            self.fail(error)

    def _follow(self, record: Collective, outputs: Any) -> None:
        backward = _task()
        if backward >= 0 and backward != self._backward:
            self._backward = backward
            self._first_ns = self._first_ns or record.issue_ns
            self._queue(partial(self._gradients_ready, self._first_ns))
        elif backward < 0 and record.op == self._left_to_end:
            self._first_ns = self._first_ns or record.issue_ns

    def _queue(self, callback: Callable[[], None]) -> None:
        Variable._execution_engine.queue_callback(callback)

    def _gradients_ready(self, first_ns: int) -> None:
        try:
            ready_ns = clock()
            in_flight = self.recorder.in_flight
            in_flight.poll_all()
            device = in_flight.device
            opened = device.open() if device is not None else None
            inner = _is_inner()
            self._queue(lambda: self._waited(first_ns, ready_ns, clock(), opened, is_inner=inner))
        except Exception as error:
            self.fail(error)

    def _waited(
        self,
        first_ns: int,
        ready_ns: int,
        end_ns: int,
        opened: Any = None,
        *,
        is_inner: bool,
        left_to_end: str = "",
    ) -> None:
        """Note the wait for what was issued since `first_ns`; it began with the last issue.

        Operations `left_to_end` are not waited for here.
        """
        try:
            in_flight, thread = self.recorder.in_flight, get_ident()
            records = in_flight.take_unheld(
                lambda record: (
                    record.issue_ns >= first_ns
                    and record.thread == thread
                    and record.op != left_to_end
                ),
                with_pending=not is_inner,
            )
            start_ns = max(ready_ns, records[-1].return_ns) if records else end_ns
            # Stable: the last bucket owns the time.
            records.sort(key=lambda record: record.dtype != "int32")
            in_flight.waited_in_cpp(records, start_ns, end_ns, estimated=True, opened=opened)
        except Exception as error:
            self.fail(error)


def _is_inner() -> bool:
    """Tell whether a function's part of a backward pass began the one that runs here."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _FUNCTION:
            return True
        frame = frame.f_back
    return False
