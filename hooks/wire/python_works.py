"""Handles of collectives that are written in Python, with a `wait` of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any

from dsprof.hooks.base import hide_from_dynamo
from dsprof.hooks.patching import Patch, PatchSet
from dsprof.hooks.wire.work import WorkHook
from dsprof.recording.recorder import Recorder
from dsprof.trace.scope import clock


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
