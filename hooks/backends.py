"""Beside the dispatcher: direct calls of a backend, and process groups written in Python.

A method of class Backend called from Python does not pass the dispatcher; what a ProcessGroup calls
in C++ does not pass here. A process group written in Python (a third-party library registered by
`Backend.register_backend`) overrides the very methods that would dispatch: its own methods are
patched. One that hands a call on to another process group is recorded there and not again.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from dsprof.hooks.base import Target, hide_from_dynamo
from dsprof.hooks.c10d import ProcessGroupHook
from dsprof.hooks.subclasses import Subclasses
from dsprof.hooks.wire import METHODS, WireOp
from dsprof.hooks.work import WorkHook
from dsprof.patching import Patch, PatchSet
from dsprof.recorder import Recorder, clock

_C10D = "torch._C._distributed_c10d"


class BackendHook(ProcessGroupHook):
    """Records what bypasses the dispatcher, whichever way the rest is intercepted."""

    name = "backends"
    targets = tuple(
        Target(
            *(_C10D, "Backend", method, "issues a collective past the dispatcher"),
            optional=True,
            after="torch.distributed",
        )
        for method in METHODS
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._groups_of: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = (
            weakref.WeakKeyDictionary()
        )
        self._works = _PythonWorks(recorder)
        self._python_groups = Subclasses(self, dist.ProcessGroup, METHODS, self._wrap_python)

    def install(self, module: str) -> None:
        self._python_groups.watch()

    def uninstall(self) -> None:
        self._python_groups.release()
        self._works.release()

    def make_note(self, op: WireOp, unbox: Callable[[Any], Any]) -> Callable[..., None]:
        note, recorder, works = super().make_note(op, unbox), self.recorder, self._works

        def note_unseen(
            tensors: Sequence[torch.Tensor],
            issuer: Any,
            is_async: bool,
            reduce_op: Any,
            peer: int,
            work: Any,
            issue_ns: int,
            return_ns: int,
        ) -> None:
            if not isinstance(issuer, dist.ProcessGroup):
                issuer = self._group_of(issuer)
            elif recorder.context().wire_ops:  # another process group has carried it out
                return
            works.learn(work)
            note(tensors, issuer, is_async, reduce_op, peer, work, issue_ns, return_ns)
            works.lend(work)

        return note_unseen

    def _wrap_python(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method of a process group in Python: its wire operations are counted apart."""
        recorder = self.recorder
        recorded = self.wrap(Target(_C10D, "ProcessGroup", name, ""), original)

        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not recorder.recording and not recorder.arm():
                return original(self, *args, **kwargs)
            outer = recorder.context()
            inner = msgspec.structs.replace(outer, wire_ops=0)
            recorder.become(inner)
            try:
                return recorded(self, *args, **kwargs)
            finally:
                recorder.become(outer)
                outer.wire_ops += inner.wire_ops

        hide_from_dynamo(method)
        return method

    def _group_of(self, backend: Any) -> Any:
        """Return the process group that `backend` serves, or itself where none is known."""
        known = self._groups_of.get(backend)
        group = known() if known is not None else None
        if group is None:
            group = next(filter(lambda pg: _serves(backend, pg), _groups()), backend)
            self._groups_of[backend] = weakref.ref(group)
        return group


def _groups() -> list[Any]:
    return list(dist.distributed_c10d._world.pg_map)


def _serves(backend: Any, group: Any) -> bool:
    return any(group._get_backend(device) is backend for device in group._device_types)


class _PythonWorks:
    """Times waits for a Work that is written in Python, and never calls it from a hook."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._patches = PatchSet()
        timed = [target.resolve() for target in WorkHook.targets if target.is_there()]
        self._is_python = dict.fromkeys(timed, False)

    def learn(self, work: Any) -> None:
        """Patch the `wait` of this kind of Work, if it brings its own."""
        kind = _definer(work)
        if kind is not None and kind not in self._is_python:
            self._is_python[kind] = True
            self._patches.apply([Patch(kind, "wait", self._timed)])

    def lend(self, work: Any) -> None:
        """Let go of a Work in Python: what it holds is not ours to keep or to ask."""
        if self._is_python.get(_definer(work), False):
            self._recorder.lend(work)

    def release(self) -> None:
        """Put everything back."""
        self._patches.revert()

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder

        @functools.wraps(original)
        def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
            start_ns, finished = clock(), False
            try:
                result = original(self, *args, **kwargs)
                finished = True
                return result
            finally:
                # A wait that it handed on to another Work has been noted there.
                if recorder.recording and recorder.is_awaited(self):
                    recorder.waited(self, start_ns, clock(), finished)

        hide_from_dynamo(wait)
        return wait


def _definer(work: Any) -> Any:
    """Return the class that defines how to wait for `work`."""
    return next((kind for kind in type(work).__mro__ if "wait" in vars(kind)), None)
