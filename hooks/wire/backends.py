"""Beside the dispatcher: direct calls of a backend, and process groups written in Python.

A method of class Backend called from Python does not pass the dispatcher; what a ProcessGroup calls
in C++ does not pass here. A process group written in Python (a third-party library registered by
`Backend.register_backend`) overrides the very methods that would dispatch: its own methods are
patched. One that hands a call on to another process group is recorded there and not again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from dsprof.hooks.base import Target
from dsprof.hooks.patching import Patch
from dsprof.hooks.subclasses import Subclasses, own_patches
from dsprof.hooks.wire.operations import METHODS, WIRE_OPS, WireOp
from dsprof.hooks.wire.process_group import ProcessGroupHook
from dsprof.hooks.wire.work import PythonWorks
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Collective

_C10D = "torch._C._distributed_c10d"

_OF_GROUPS_BEFORE = ("allgather_into_tensor_coalesced_", "reduce_scatter_tensor_coalesced_")
"""Operations that Python can call of a backend from torch 2.14 on."""

_TORCHS_OWN = {name: method for name, method in vars(dist.ProcessGroup).items() if name in METHODS}
"""Methods of class ProcessGroup as they are before anything of ours is installed."""


class BackendHook(ProcessGroupHook):
    """Records what bypasses the dispatcher, whichever way the rest is intercepted."""

    name = "backends"
    targets = tuple(
        Target(
            *(_C10D, "Backend", method, "issues a collective past the dispatcher"),
            carries=f"direct {WIRE_OPS[op].name} calls of a backend",
            since="2.14" if op in _OF_GROUPS_BEFORE else WIRE_OPS[op].since,
            after="torch.distributed",
        )
        for method, op in METHODS.items()
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._groups_of: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = (
            weakref.WeakKeyDictionary()
        )
        self._works = PythonWorks(recorder)
        self._python_groups = Subclasses(self, dist.ProcessGroup, self._patches_of)

    def install(self, module: str) -> None:
        self._python_groups.watch()

    def uninstall(self) -> None:
        self._python_groups.release()
        self._works.release()

    def make_note(
        self, op: WireOp, unbox: Callable[[Any], Any] | None
    ) -> Callable[..., Collective | None]:
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
        ) -> Collective | None:
            if not isinstance(issuer, dist.ProcessGroup):
                issuer = self._group_of(issuer)
            is_python = works.learn(work)
            record = note(tensors, issuer, is_async, reduce_op, peer, work, issue_ns, return_ns)
            if is_python:
                recorder.in_flight.lend(work)
            return record

        return note_unseen

    def _patches_of(self, kind: type) -> list[Patch]:
        """Return patches for the methods of a process group in Python.

        What it inherits stays torch's: C++ would take a patched method for an override.
        """
        inherited = [
            Patch(kind, name, lambda _, raw=raw: raw)  # type: ignore[misc]
            for name, raw in _TORCHS_OWN.items()
            if getattr(kind, name) is getattr(dist.ProcessGroup, name)
            and vars(dist.ProcessGroup)[name] is not raw
        ]
        return [*own_patches(kind, METHODS, self._wrap_python), *inherited]

    def _wrap_python(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        return self.wrap(Target(_C10D, "ProcessGroup", name, "is written in Python"), original)

    def _group_of(self, backend: Any) -> Any:
        """Return the process group that `backend` serves, or itself where none is known."""
        known = self._groups_of.get(backend)
        group = known() if known is not None else None
        if group is None:
            groups = list(dist.distributed_c10d._world.pg_map)
            group = next((one for one in groups if _serves(backend, one)), backend)
            self._groups_of[backend] = weakref.ref(group)
        return group


def _serves(backend: Any, group: Any) -> bool:
    return any(group._get_backend(device) is backend for device in group._device_types)
