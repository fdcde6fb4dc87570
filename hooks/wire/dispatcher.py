"""Collectives in torch's dispatcher, where every caller of a process group passes once.

A kernel below each `c10d::*` operation at dispatch key BackendSelect, in Python (`native.py` has
them in C++), runs with the GIL released while the collective runs.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from dsprof.hooks.base import hide_from_dynamo
from dsprof.hooks.wire.collectives import WireHook
from dsprof.hooks.wire.layers import KEY, check_slot
from dsprof.hooks.wire.operations import WIRE_OPS, WireOp
from dsprof.trace.scope import clock


class DispatcherHook(WireHook):
    """Sees collectives in the dispatcher, below every caller of a process group."""

    _library: Any = None

    def modules(self) -> tuple[str, ...]:
        return ("torch.distributed",)

    def install(self, module: str) -> None:
        """Register the kernels.

        Raises:
            RuntimeError: another tool already holds the kernel of an operation.
        """
        ops = {name: op for name, op in WIRE_OPS.items() if hasattr(torch.ops.c10d, name)}
        for name in ops:
            check_slot(f"c10d::{name}", "collectives that C++ issues")
        self._put_in(ops)

    def uninstall(self) -> None:
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _put_in(self, ops: dict[str, WireOp]) -> None:
        self._library = torch.library.Library("c10d", "IMPL")
        for name, op in ops.items():
            self._library.impl(name, self._kernel(name, op), KEY, with_keyset=True)

    def _kernel(self, name: str, op: WireOp) -> Callable[..., Any]:
        overload = getattr(torch.ops.c10d, name).default
        redispatch = overload._handle.redispatch_boxed
        below = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, KEY))
        recorder, note, sized = self.recorder, self.make_note(op, dist.Work.unbox), op.sized
        in_flight = recorder.in_flight
        unbox_group, announced = dist.ProcessGroup.unbox, self.layers.announced
        noted_below = self.layers.noted_below
        at = _positions(overload._schema)
        group_at, async_at, reduce_at, peer_at = at.group, at.is_async, at.reduce_op, at.peer

        def kernel(keyset: Any, *args: Any) -> Any:
            is_announced = announced and get_ident() in announced
            if is_announced or (not recorder.hot.recording and not recorder.arm()):
                return redispatch(keyset & below, *args)
            if in_flight.device is not None:
                in_flight.device.begin()
            issue_ns = clock()
            result = redispatch(keyset & below, *args)
            return_ns = clock()
            if not self.broken:
                try:
                    work = result[-1] if type(result) is tuple else result
                    record = note(
                        sized(args),
                        unbox_group(args[group_at]),
                        # An argument that equals its default (asynchronous) is not passed.
                        args[async_at] if 0 < async_at < len(args) else work is not None,
                        args[reduce_at] if reduce_at else None,
                        args[peer_at] if peer_at else -1,
                        work,
                        issue_ns,
                        return_ns,
                    )
                    if record is not None:
                        noted_below[record.thread] = return_ns
                    if in_flight.followers:
                        in_flight.tell_followers(record, args[0])
                except Exception as error:
                    self.fail(error)
            return result

        hide_from_dynamo(kernel)
        return kernel


class _Positions(NamedTuple):
    """Where an operation's schema has what; 0 (never right: tensors come first) for nowhere."""

    group: int
    is_async: int
    reduce_op: int
    peer: int


def _positions(schema: Any) -> _Positions:
    names = [argument.name for argument in schema.arguments]

    def first(*wanted: str) -> int:
        return next((names.index(name) for name in wanted if name in names), 0)

    return _Positions(
        group=first("process_group"),
        is_async=first("async_op", "asyncOp"),
        reduce_op=first("reduce_op"),
        peer=first("root_rank", "dst", "src"),
    )
