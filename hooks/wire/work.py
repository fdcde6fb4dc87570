"""Completion: how long a wait for a collective blocked the host, and when it was complete.

`Work.wait` is patched on the class, and on subclasses that bring their own. Which collective a wait
is for is known by the identity of the Work that the recorder keeps while it is in flight. Handles
that are written in Python have a `wait` of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch

from dsprof.hooks.base import Hook, Target, hide_from_dynamo
from dsprof.hooks.patching import Patch, PatchSet
from dsprof.recording.recorder.in_flight import InFlight
from dsprof.recording.recorder.recorder import Recorder
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
        waited, hot = in_flight.waited, recorder.hot
        # Dynamo inlines a patched method, and knows this function.
        is_compiling = torch.compiler.is_dynamo_compiling

        # Named parameters and no star call: 0.3 us less for each wait.
        @functools.wraps(original)
        def wait(self: Any, timeout: Any = _DEFAULT) -> Any:
            if is_compiling() or not hot.recording:
                return original(self) if timeout is _DEFAULT else original(self, timeout)
            device = hot.device
            if device is not None and device.holds(self):
                given = () if timeout is _DEFAULT else (timeout,)
                return device.wait(self, functools.partial(original, self, *given))
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
        return self.in_c("wait", original, wait, (in_flight.waited,))


class PythonWorks:
    """Times waits for a handle that is written in Python, and never calls it from a hook."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._patches = PatchSet()
        timed = [target.resolve() for target in WorkHook.targets if target.is_there()]
        self._is_python = dict.fromkeys(timed, False)

    def learn(self, work: Any) -> bool:
        """Patch the `wait` of this kind of handle, if it brings its own; tell whether it does."""
        kind = next((kind for kind in type(work).__mro__ if "wait" in vars(kind)), None)
        if kind is None:
            return False
        if kind not in self._is_python:
            self._is_python[kind] = True
            self._patches.apply([Patch(kind, "wait", self._timed)])
        return self._is_python[kind]

    def release(self) -> None:
        """Put everything back."""
        self._patches.revert()

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder, in_flight = self._recorder, self._recorder.in_flight

        @functools.wraps(original)
        def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not recorder.recording:
                return original(self, *args, **kwargs)
            start_ns, finished = clock(), False
            try:
                result = original(self, *args, **kwargs)
                finished = True
                return result
            finally:
                # A wait that it handed on to another Work has been noted there.
                if recorder.recording and in_flight.is_awaited(self):
                    end_ns = clock()
                    in_flight.waited(self, start_ns, end_ns, finished)
                    in_flight.inner_waits[get_ident()] = end_ns  # a Work in C++ may be around us

        hide_from_dynamo(wait)
        return wait
