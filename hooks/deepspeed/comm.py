"""Requests to deepspeed.comm: the requested side of each collective.

All of deepspeed.comm passes through the methods of the backend class, looked up at each call, so
patching the class sees names that were imported early. Nothing is recorded for a request that
reaches c10d: the wire hook does that, and finds the request in the thread's context. A backend that
somebody else puts behind deepspeed.comm is patched as well, and what it does by itself recorded.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch

from dsprof.hooks.base import Hook, Target, hide_from_dynamo
from dsprof.hooks.patching import Patch
from dsprof.hooks.subclasses import Subclasses, own_patches
from dsprof.hooks.wire.off_wire import OffWire
from dsprof.hooks.wire.requests import begin_request
from dsprof.recording.recorder.hot_state import Context
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.scope import clock

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
_SINCE = {
    "all_gather_object": "0.17.6",
    "batch_isend_irecv": "0.19.8",
    "broadcast_object_list": "0.16.9",
}
"""The first release with a method, in docs/reference/compatibility.md; others are older."""

_BACKENDS = (("deepspeed.comm.torch", "TorchBackend"), ("deepspeed.comm.ccl", "CCLBackend"))


class DeepSpeedCommHook(Hook):
    """Marks what each call into deepspeed.comm asked for."""

    name = "deepspeed.comm"
    targets = tuple(
        Target(
            *(module, owner, method, "names the requested operation"),
            carries=f"requests for {method} by {owner}",
            since=_SINCE.get(method, ""),
        )
        for module, owner in _BACKENDS
        for method in _METHODS
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._off_wire = OffWire(recorder)
        self._custom: Subclasses | None = None

    def install(self, module: str) -> None:
        """Watch for backends of others: subclasses of DeepSpeed's, and whatever serves as one."""
        if self._custom is None:
            base = importlib.import_module("deepspeed.comm.backend").Backend
            own = [module for module, _ in _BACKENDS]
            self._custom = Subclasses(self, base, self._patches_of, own)
            self._custom.watch()
            self.recorder.progress.rare_step_listeners.append(self._look_at_backend)

    def uninstall(self) -> None:
        if self._custom is not None:
            self._custom.release()
        self._off_wire.release()

    def patches(self, module: str) -> list[Any]:
        """Patch only what a class defines itself: a method that CCLBackend inherits is patched."""
        return [patch for patch in super().patches(module) if patch.name in vars(patch.owner)]

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        return self._wrap_request(target.name, original)

    def _patches_of(self, kind: type) -> list[Patch]:
        return own_patches(kind, _METHODS, self._wrap_request)

    def _wrap_request(self, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
        hook, recorder, is_compiling = self, self.recorder, torch.compiler.is_dynamo_compiling
        become, hot, switch = recorder.contexts.become, recorder.hot, self.switch
        record_unseen = self._record_unseen

        @functools.wraps(original)
        def method(backend: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or switch.broken or not (hot.recording or recorder.arm()):
                return original(backend, *args, **kwargs)
            request = None
            try:
                request = begin_request(recorder, op)
            except Exception as error:
                hook.fail(error)
            if request is None:  # deepspeed.comm calls it for itself
                return original(backend, *args, **kwargs)
            outer, context = request
            start_ns = clock()
            try:
                result = original(backend, *args, **kwargs)
            finally:
                become(outer)
            if not context.wire_ops:
                try:
                    record_unseen(context, (backend, *args), kwargs, result, start_ns, clock())
                except Exception as error:
                    hook.fail(error)
            return result

        hide_from_dynamo(method)
        hide_from_dynamo(begin_request, record_unseen, and_calls=True)
        return self.in_c("request", original, method, (op, record_unseen))

    def _record_unseen(
        self,
        context: Context,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        result: Any,
        start_ns: int,
        end_ns: int,
    ) -> None:
        """Record what a request did by itself, unless the hook of the wire is blind."""
        if not self.recorder.failures.get("c10d"):
            self._off_wire.record(context, args[1:], kwargs or {}, result, start_ns, end_ns)

    def _look_at_backend(self, step: int) -> None:
        """Patch a backend that is of no class known: deepspeed.comm only calls its methods."""
        comm = sys.modules.get("deepspeed.comm.comm")
        backend = getattr(comm, "cdb", None)
        if backend is not None and self._custom is not None:
            self._custom.include(type(backend))
