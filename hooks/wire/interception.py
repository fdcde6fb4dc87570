"""The wire at the lowest cost: methods of ProcessGroup first, the dispatcher once C++ communicates.

A kernel in Python costs two conversions of all arguments. One in the dispatcher is needed for what
communicates without a Python caller: DDP's reducer, functional collectives (DTensor, tensor
parallelism, compiled graphs), and what DDP and FSDP send at their start. Each is noticed when it is
used, and not when it is imported: any optimizer of torch imports all of them.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from dsprof.hooks.base import Target
from dsprof.hooks.subclasses import descendants
from dsprof.hooks.wire.dispatcher import DispatcherHook
from dsprof.hooks.wire.operations import WIRE_OPS
from dsprof.hooks.wire.process_group import ProcessGroupHook
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Note

_DDP = Target(
    "torch.nn.parallel.distributed",
    "DistributedDataParallel",
    "_ddp_init_helper",  # as pickle and deepcopy do, too, which call no __init__
    "announces collectives that C++ issues",
)
_AT_START = tuple(
    Target("torch.distributed", "", name, "issues collectives in C++", f"collectives of {name}")
    for name in ("_broadcast_coalesced", "_verify_params_across_processes")
)

OPERATORS = (
    "the program refers to torch.ops.c10d: {}: if it called these operators before DDP or a "
    "functional collective was used, those calls are not recorded; to record them, set "
    "interception to native or dispatcher"
)
_looked_up = {"scatter_"}
"""Operators that a hook has looked up: who else uses them is unknown from then on.

Tensors of torchao and TransformerEngine list scatter_, because that of Python, which is seen,
calls it for them.
"""


class CompleteHook(ProcessGroupHook):
    """Sees what Python issues in class ProcessGroup, and what C++ issues in the dispatcher."""

    dispatcher_hook = DispatcherHook

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._dispatcher: DispatcherHook | None = None
        self._going_below = threading.RLock()  # a signal handler may communicate, too

    def install(self, module: str) -> None:
        """Register the dispatcher's kernels.

        Raises:
            RuntimeError: another tool holds one of them.
        """
        self._go_below()

    def losses(self, module: str) -> list[str]:
        """Return nothing: what a method of a release would miss, the kernels see."""
        return []

    def uninstall(self) -> None:
        with self._going_below:
            dispatcher, self._dispatcher = self._dispatcher, None
            if dispatcher is not None:
                dispatcher.uninstall()

    def _go_below(self) -> None:
        with self._going_below:
            if self._dispatcher is None and not self.recorder.stopped:
                dispatcher = self._dispatcher = self.dispatcher_hook(self.recorder)
                dispatcher.sites, self.has_kernels = self.sites, True
                try:
                    dispatcher.install("torch.distributed")
                except BaseException:  # a signal handler's, too: half of them would stay for good
                    self.uninstall()
                    raise


class AutomaticHook(CompleteHook):
    """Goes to the dispatcher only when something comes up that communicates from C++."""

    targets = (*ProcessGroupHook.targets, *_AT_START, _DDP)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.layers.on_cpp = self._follow_below

    def install(self, module: str) -> None:
        """Go to the dispatcher if DDP has been at it already.

        Raises:
            RuntimeError: another tool holds a kernel there; what Python issues is still seen.
        """
        if module == _DDP.module and dist.is_initialized() and _ddp_lives():
            self._go_below()

    def uninstall(self) -> None:
        self._say_operators()
        super().uninstall()

    def losses(self, module: str) -> list[str]:
        return ProcessGroupHook.losses(self, module)

    def _go_below(self) -> None:
        self._say_operators()
        super()._go_below()
        _looked_up.update(vars(torch.ops.c10d))

    def _say_operators(self) -> None:
        """Say which operators Python code has looked up, and may have called unseen, until now."""
        used = vars(torch.ops.c10d).keys() & WIRE_OPS.keys() - _looked_up
        if used and self._dispatcher is None:
            self.recorder.outbox.define(Note(OPERATORS.format(", ".join(sorted(used)))))

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        if target is not _DDP and target not in _AT_START:
            return super().wrap(target, original)

        @functools.wraps(original)
        def communicate(*args: Any, **kwargs: Any) -> Any:
            self._follow_below()
            return original(*args, **kwargs)

        return communicate

    def _follow_below(self) -> None:
        """Go to the dispatcher for something that is about to communicate from C++."""
        if self._dispatcher is not None or self.recorder.stopped:
            return
        try:
            self._go_below()
        except Exception as error:
            self.recorder.fail(self.name, error)


def _ddp_lives() -> bool:
    """Tell whether a DDP module exists; asked once, when recording is enabled in mid-run.

    An object refers to its class: looking for those that do takes half as long as listing all.
    """
    ddp = _DDP.resolve()
    kinds = {ddp, *descendants(ddp)}
    return any(type(thing) in kinds for thing in gc.get_referrers(*kinds))
