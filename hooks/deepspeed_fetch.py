"""ZeRO-3 parameters: fetches, prefetches and releases, and the time that waiting for them took.

DeepSpeed reports these itself to a profiler object that does nothing unless its timers are on;
its two methods are called around each fetch in any case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
import torch.distributed as dist

from dsprof.events import Context, Fetch, clock
from dsprof.hooks.base import Hook, Target, hide_from_dynamo
from dsprof.recorder import NOBODY, Recorder

_PROFILER = ("deepspeed.runtime.zero.partitioned_param_profiler", "PartitionedParameterProfiler")
_COORDINATOR = (
    "deepspeed.runtime.zero.partitioned_param_coordinator",
    "PartitionedParameterCoordinator",
)
_RELEASE = "_PartitionedParameterCoordinator__release_param"

_FETCHES = ("forward_fetch_submit", "backward_fetch_submit")
_PREFETCHES = ("forward_prefetch_submit", "backward_prefetch_submit")
_SUBMITS = frozenset(_FETCHES + _PREFETCHES)
_WAITS = frozenset(("forward_fetch_wait", "backward_fetch_wait"))


class DeepSpeedFetchHook(Hook):
    """Records what stage 3 gathers, waits for and lets go."""

    name = "deepspeed.fetch"
    targets = (
        Target(*_PROFILER, "start_event", "begins a fetch, prefetch or wait"),
        Target(*_PROFILER, "stop_event", "ends a fetch, prefetch or wait"),
        Target(*_COORDINATOR, _RELEASE, "lets a gathered parameter go"),
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._outer = NOBODY
        self._submit_ns = 0
        self._wait_ns = 0
        self._fetch = 0
        self._release: Fetch | None = None  # that goes on as long as nothing is fetched
        hook = DeepSpeedFetchHook
        noting = (hook._begin, hook._end, hook._end_prefetch, hook._end_wait, hook._record)
        hide_from_dynamo(*noting, hook._released, hook._end_release, and_calls=True)
        recorder.step_listeners.append(self._end_release)
        recorder.world_listeners.append(self._forget)

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        wrap = {
            "start_event": self._wrap_start,
            "stop_event": self._wrap_stop,
            _RELEASE: self._wrap_release,
        }
        return wrap[target.name](original)

    def _wrap_start(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hook, recorder, is_compiling = self, self.recorder, torch.compiler.is_dynamo_compiling

        # Hundreds of calls a step: a wait for each module, most of which wait for nothing.
        @functools.wraps(original)
        def start_event(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            if name in _WAITS:
                if hook._release is not None:
                    hook._end_release()
                hook._wait_ns = clock()
            elif name in _SUBMITS and not is_compiling() and recorder.recording:
                hook._begin()
            return original(self, name, *args, **kwargs)

        hide_from_dynamo(start_event)
        return start_event

    def _wrap_stop(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hook, recorder, is_compiling = self, self.recorder, torch.compiler.is_dynamo_compiling
        ends = {
            **dict.fromkeys(_FETCHES, self._end),
            **dict.fromkeys(_PREFETCHES, self._end_prefetch),
            **dict.fromkeys(_WAITS, self._end_wait),
        }

        @functools.wraps(original)
        def stop_event(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            elements = args[0] if args else kwargs.get("num_elem", 0)
            if elements and not is_compiling() and recorder.recording and not hook.broken:
                try:
                    end = ends.get(name)
                    if end is not None:
                        end(elements, name.startswith("forward"))
                except Exception as error:
                    hook.fail(error)
            return original(self, name, *args, **kwargs)

        hide_from_dynamo(stop_event)
        return stop_event

    def _begin(self) -> None:
        if self.broken:
            return
        try:
            contexts, thread = self.recorder.contexts, get_ident()
            outer = contexts.get(thread, NOBODY)
            outer = self._outer = NOBODY if outer.fetch else outer  # of a fetch that raised
            self._fetch, self._submit_ns = next(self.recorder.ids), clock()
            contexts[thread] = Context(outer.request, outer.requested, outer.flush, self._fetch)
        except Exception as error:
            self.fail(error)

    def _end(self, elements: int, forward: bool) -> None:
        self.recorder.become(self._outer)

    def _end_prefetch(self, elements: int, forward: bool) -> None:
        self.recorder.become(self._outer)
        self._record("prefetch", elements, 0, self._submit_ns, forward and _in_backward())
        self._submit_ns = 0

    def _end_wait(self, elements: int, forward: bool) -> None:
        # DeepSpeed counts this rank's share of what it waits for.
        whole = elements * dist.get_world_size()
        start_ns = self._submit_ns or self._wait_ns
        wait_ns = clock() - self._wait_ns
        self._record("fetch", whole, wait_ns, start_ns, forward and _in_backward())
        self._submit_ns = 0

    def _wrap_release(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hook, recorder, is_compiling = self, self.recorder, torch.compiler.is_dynamo_compiling

        @functools.wraps(original)
        def release(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not recorder.recording or hook.broken:
                return original(self, *args, **kwargs)
            param: Any = args[0] if args else None
            status, start_ns = getattr(param, "ds_status", None), clock()
            result = original(self, *args, **kwargs)
            try:
                if param.ds_status is not status:
                    hook._released(param.ds_numel, start_ns)
            except Exception as error:
                hook.fail(error)
            return result

        hide_from_dynamo(release)
        return release

    def _released(self, elements: int, start_ns: int) -> None:
        """Count a parameter to the release that goes on, or begin one."""
        recorder, release, thread = self.recorder, self._release, get_ident()
        if release is not None and release.scope is recorder.scope and release.thread == thread:
            release.elements += elements
            release.end_ns = clock()
            return
        self._end_release()
        number, scope = next(recorder.ids), recorder.scope
        self._release = Fetch(number, "release", elements, 0, scope, start_ns, clock(), thread)

    def _end_release(self, step: int = -1) -> None:
        """Hand over the release that goes on: something is fetched, or a step has ended."""
        release, self._release = self._release, None
        if release is not None:
            self.recorder.add(release)

    def _forget(self) -> None:
        self._release = None

    def _record(
        self, kind: str, elements: int, wait_ns: int, start_ns: int, recomputing: bool = False
    ) -> None:
        recorder = self.recorder
        fetch = self._fetch or next(recorder.ids)
        self._fetch = 0
        scope, thread = recorder.scope, get_ident()
        recorder.add(
            Fetch(fetch, kind, elements, wait_ns, scope, start_ns, clock(), thread, recomputing)
        )


def _in_backward() -> bool:
    """Say whether autograd is at work in this thread: a forward there is a recomputation."""
    return bool(torch._C._current_graph_task_id() != -1)
