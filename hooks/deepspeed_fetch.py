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

from dsprof.events import Context, Fetch
from dsprof.hooks.base import Hook, Target, hide_from_dynamo
from dsprof.recorder import NOBODY, Recorder, clock

_PROFILER = ("deepspeed.runtime.zero.partitioned_param_profiler", "PartitionedParameterProfiler")
_COORDINATOR = (
    "deepspeed.runtime.zero.partitioned_param_coordinator",
    "PartitionedParameterCoordinator",
)
_RELEASE = "_PartitionedParameterCoordinator__release_param"


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
        hook = DeepSpeedFetchHook
        noting = (hook._begin, hook._end, hook._end_prefetch, hook._begin_wait, hook._end_wait)
        hide_from_dynamo(*noting, hook._record, and_calls=True)

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        if target.name == _RELEASE:
            return self._wrap_release(original)
        notes = self._starts() if target.name == "start_event" else self._stops()
        hook, recorder, is_compiling = self, self.recorder, torch.compiler.is_compiling

        # Hundreds of calls a step, most of them for modules that have nothing to fetch.
        @functools.wraps(original)
        def method(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and recorder.recording and name in notes and not hook.broken:
                try:
                    notes[name](*args, **kwargs)
                except Exception as error:
                    hook.fail(error)
            return original(self, name, *args, **kwargs)

        hide_from_dynamo(method)
        return method

    def _starts(self) -> dict[str, Callable[..., None]]:
        return _by_event(submit=self._begin, prefetch=self._begin, wait=self._begin_wait)

    def _stops(self) -> dict[str, Callable[..., None]]:
        return _by_event(submit=self._end, prefetch=self._end_prefetch, wait=self._end_wait)

    def _begin(self, forward: bool) -> None:
        recorder = self.recorder
        outer = self._outer = recorder.context()
        self._fetch, self._submit_ns = next(recorder.ids), clock()
        recorder.become(Context(outer.request, outer.requested, outer.flush, self._fetch))

    def _end(self, forward: bool, elements: int) -> None:
        self.recorder.become(self._outer)

    def _end_prefetch(self, forward: bool, elements: int) -> None:
        self.recorder.become(self._outer)
        self._record("prefetch", elements, 0, self._submit_ns, forward and _in_backward())
        self._submit_ns = 0

    def _begin_wait(self, forward: bool) -> None:
        self._wait_ns = clock()

    def _end_wait(self, forward: bool, elements: int) -> None:
        if elements:
            # DeepSpeed counts this rank's share of what it waits for.
            whole = elements * dist.get_world_size()
            start_ns = self._submit_ns or self._wait_ns
            wait_ns = clock() - self._wait_ns
            self._record("fetch", whole, wait_ns, start_ns, forward and _in_backward())
        self._submit_ns = 0

    def _wrap_release(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hook, recorder, is_compiling = self, self.recorder, torch.compiler.is_compiling

        @functools.wraps(original)
        def release(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not recorder.recording or hook.broken:
                return original(self, *args, **kwargs)
            param: Any = args[0] if args else None
            status, start_ns = getattr(param, "ds_status", None), clock()
            result = original(self, *args, **kwargs)
            try:
                if param.ds_status is not status:
                    hook._record("release", param.ds_numel, 0, start_ns)
            except Exception as error:
                hook.fail(error)
            return result

        hide_from_dynamo(release)
        return release

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


def _by_event(**notes: Callable[..., None]) -> dict[str, Callable[..., None]]:
    """Name the events of DeepSpeed that call for each note, which is told if it is of a forward."""
    names = {"submit": "fetch_submit", "prefetch": "prefetch_submit", "wait": "fetch_wait"}
    return {
        f"{phase}_{names[kind]}": functools.partial(note, phase == "forward")
        for kind, note in notes.items()
        for phase in ("forward", "backward")
    }
