"""Collectives that Python issues, at the methods of class ProcessGroup."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

import torch
import torch.distributed as dist

from dsprof.hooks.base import Target, hide_from_dynamo
from dsprof.hooks.dtypes import DTYPES
from dsprof.hooks.wire.collectives import WireHook
from dsprof.hooks.wire.operations import BLOCKING, METHODS, WIRE_OPS, WireOp
from dsprof.hooks.wire.reduce_ops import OP_NAMES, reduce_op_name
from dsprof.recording.recorder.hot_state import Context
from dsprof.recording.recorder.interrupts import raise_if_of_signal_handler
from dsprof.recording.recorder.live_state import Kinds
from dsprof.recording.recorder.recorder import FIRST_SAMPLE, SAMPLE, Recorder
from dsprof.trace.schema import Collective
from dsprof.trace.scope import clock

_WITH_OP = {
    getattr(dist, name)
    for name in (
        *("AllreduceOptions", "AllreduceCoalescedOptions", "ReduceOptions", "ReduceScatterOptions"),
        *("ReduceOp", "RedOpType"),
    )
    if hasattr(dist, name)
} | {dist.ReduceOp.RedOpType}
_SIZED_AT = {
    "all_reduce": 1,
    "all_reduce_coalesced": 1,
    "all_gather_into_tensor": 1,
    "reduce_scatter_tensor": 2,
    "all_to_all_single": 2,
}
"""Which argument of a method has the tensors of S, of those that the hook in C takes."""
_NESTED = {"all_gather": 0, "gather": 0, "scatter": 1, "reduce_scatter": 1}
_TAKES_LIST = {"all_reduce", "broadcast", "reduce", "all_reduce_coalesced", "send", "recv"}
_HAS_ROOT = {"broadcast", "reduce", "gather", "gather_into_tensor", "scatter"}


class ProcessGroupHook(WireHook):
    """Sees the methods of class ProcessGroup: all that Python issues, nothing that C++ issues."""

    targets = tuple(
        Target(
            *("torch.distributed", "ProcessGroup", method, "issues a collective"),
            carries=f"{WIRE_OPS[op].name} calls from Python",
            since=WIRE_OPS[op].since,
        )
        for method, op in METHODS.items()
    )

    @property
    def has_kernels(self) -> bool:
        """Whether there are some in the dispatcher, too: they must know what a method records."""
        return self.switch.in_python

    @has_kernels.setter
    def has_kernels(self, there: bool) -> None:
        self.switch.in_python = there

    def begin_apart(self) -> Apart | None:
        """Count apart what the call that follows puts on record."""
        try:
            return Apart(self.recorder)
        except Exception as error:
            self.fail(error)
            return None

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        op = WIRE_OPS[METHODS[target.name]]
        hook, recorder, note = self, self.recorder, self.make_note(op, None)
        is_plain, sized = op.name in _TAKES_LIST, op.sized
        may_be_lone = is_plain or op.name in _NESTED
        has_peer, has_root = op.is_point_to_point, op.name in _HAS_ROOT
        has_reduce_op, plain_group = "reduce" in op.name, dist.ProcessGroup
        announced, in_flight = self.layers.announced, recorder.in_flight
        noted_below, hot, switch = self.layers.noted_below, recorder.hot, self.switch

        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if switch.broken or (not hot.recording and not recorder.arm()):
                return original(self, *args, **kwargs)
            if in_flight.device is not None:
                in_flight.device.begin()
            apart = None if type(self) is plain_group else hook.begin_apart()
            # What a group in Python issues from C++, the kernel records.
            had_kernels = hook.has_kernels
            is_announced = apart is None and had_kernels
            if is_announced:
                announced.add(get_ident())
            issue_ns = clock()
            try:
                work = original(self, *args, **kwargs)
            finally:
                if is_announced:
                    announced.discard(get_ident())
                if apart is not None:
                    apart.end()
            return_ns = clock()
            if apart is not None:
                is_on_record = apart.is_on_record
            else:  # by a kernel, if another thread has brought kernels in meanwhile
                came = hook.has_kernels is not had_kernels
                is_on_record = came and noted_below.get(get_ident(), 0) >= issue_ns
            if not is_on_record:
                try:
                    given = (*args, *kwargs.values()) if kwargs else args
                    is_list = is_plain and type(given[0]) is list
                    options = given[-1] if given else None
                    peer = -1
                    if has_root:
                        peer = getattr(options, "rootRank", -1)
                    elif has_peer and len(given) > 2:
                        peer = given[1]
                    record = note(
                        given[0]
                        if is_list
                        else sized(_as_lists(given, op) if may_be_lone else given),
                        self,
                        getattr(options, "asyncOp", work is not None),
                        options if has_reduce_op and type(options) in _WITH_OP else None,
                        peer,
                        work,
                        issue_ns,
                        return_ns,
                    )
                    if in_flight.followers:
                        in_flight.tell_followers(record, given[0] if given else ())
                except Exception as error:
                    hook.fail(error)
            return work

        # By this name C++ knows a call that comes from an override and must not go back there.
        code = method.__code__.replace(co_name=target.name)  # type: ignore[attr-defined]
        method.__code__ = code  # type: ignore[attr-defined]
        hide_from_dynamo(method)
        if op.name == BLOCKING:
            return self._noted_first(original, note, method)
        return self._usual_in_c(op, original, method)

    def _noted_first(
        self,
        original: Callable[..., Any],
        note: Callable[..., Collective | None],
        otherwise: Callable[..., Any],
    ) -> Callable[..., Any]:
        """Return a method that records its call before it is made: it may never return."""
        hook, recorder, plain_group = self, self.recorder, dist.ProcessGroup
        announced, in_flight, switch = self.layers.announced, recorder.in_flight, self.switch

        @functools.wraps(original)
        def blocking(self: Any, *args: Any, **kwargs: Any) -> Any:
            is_recorded = not switch.broken and (recorder.hot.recording or recorder.arm())
            if type(self) is not plain_group or not is_recorded:
                return otherwise(self, *args, **kwargs)
            start_ns, thread, record, finished = clock(), get_ident(), None, False
            try:
                record = note((), self, False, None, -1, self, start_ns, start_ns)
            except Exception as error:
                hook.fail(error)
            announced.add(thread)
            try:
                result = original(self, *args, **kwargs)
                finished = True
                return result
            finally:
                announced.discard(thread)
                if record is not None:
                    in_flight.waited(None, start_ns, clock(), finished)

        hide_from_dynamo(blocking)
        return blocking

    def _usual_in_c(
        self, op: WireOp, original: Callable[..., Any], method: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return `method`, where C has a part of it, in C."""
        sized_at = _SIZED_AT.get(op.name)
        if sized_at is None:
            return method
        recorder = self.recorder
        held = (
            *(op.name, self.groups.state, DTYPES),
            Kinds(recorder.in_flight.state.words, op.name),
            *(self.sites.known, self.sites.look_above),
            *(recorder.in_flight.poll, raise_if_of_signal_handler),
            *(_WITH_OP if "reduce" in op.name else None, OP_NAMES, reduce_op_name),
            self.layers.noted_below,
            *(torch.Tensor, dist.ProcessGroup),
        )
        numbers = (sized_at, op.name in _TAKES_LIST, SAMPLE, FIRST_SAMPLE)
        return self.in_c("collective", original, method, held, numbers)


class Apart:
    """Counts what a call puts on record, apart from all else that this thread does."""

    def __init__(self, recorder: Recorder, coalesced: int = 0) -> None:
        self._contexts = recorder.contexts
        self._outer = self._contexts.current()
        coalesced = coalesced or self._outer.coalesced
        outer = self._outer
        self.context = Context(
            *(outer.request, outer.requested, outer.flush, outer.fetch, 0, coalesced, outer.site)
        )
        self._contexts.become(self.context)

    def end(self) -> None:
        """Go on in the context that was."""
        self._contexts.become(self._outer)
        self._outer.wire_ops += self.context.wire_ops

    @property
    def is_on_record(self) -> bool:
        """Whether the call ended in a collective that is on record."""
        return self.context.wire_ops > 0


def _as_lists(given: Sequence[Any], op: WireOp) -> Sequence[Any]:
    """Bring the overloads that take lone tensors into the form of the operation's schema."""
    args = [(a,) if isinstance(a, torch.Tensor) else a for a in given]
    position = _NESTED.get(op.name)
    if position is not None and args[position] and isinstance(args[position][0], torch.Tensor):
        args[position] = [args[position]]
    return args
