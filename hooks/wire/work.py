"""Completion: how long the host was blocked waiting for a collective, and until when.

`Work.wait` is patched on the class, and on subclasses that bring their own. Which collective a wait
is for is known by the identity of the Work that the recorder keeps while it is in flight.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from dsprof.hooks.base import Hook, Target, hide_from_dynamo
from dsprof.recording.in_flight import InFlight
from dsprof.trace.scope import clock

_C10D = "torch._C._distributed_c10d"
_DEFAULT = object()


class WorkHook(Hook):
    """Times waits."""

    name = "work"
    targets = (
        Target("torch.distributed", "Work", "wait", "blocks until the collective is complete"),
        *(
            Target(
                *(_C10D, kind, "wait", "has its own wait"),
                carries=f"waits for a {kind}",
                since=since,
                after="torch.distributed",
            )
            for kind, since in (("FakeWork", "2.7"), ("PythonCallbackWork", "2.10"))
        ),
    )

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder, in_flight = self.recorder, self.recorder.in_flight
        waited = in_flight.waited
        # Dynamo inlines a patched method, and knows this function.
        is_compiling = torch.compiler.is_dynamo_compiling

        # Named parameters and no star call: 0.3 us less for each wait.
        @functools.wraps(original)
        def wait(self: Any, timeout: Any = _DEFAULT) -> Any:
            if is_compiling() or not recorder.recording:
                return original(self) if timeout is _DEFAULT else original(self, timeout)
            if in_flight.device is not None and in_flight.device.holds(self):
                given = () if timeout is _DEFAULT else (timeout,)
                return in_flight.device.wait(self, functools.partial(original, self, *given))
            start_ns = clock()
            try:
                result = original(self) if timeout is _DEFAULT else original(self, timeout)
            except BaseException:
                waited(self, start_ns, clock(), False)
                raise
            waited(self, start_ns, clock(), True)
            return result

        hide_from_dynamo(wait)
        hide_from_dynamo(InFlight.waited, and_calls=True)
        return wait


HOOK = WorkHook
