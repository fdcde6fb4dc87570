"""ZeRO-3 parameters: fetches, prefetches and releases, and the time that waiting for them took.

DeepSpeed reports these itself to a profiler object that does nothing unless its timers are on;
its two methods are called around each fetch in any case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch.distributed as dist

from dsprof.events import Context, Fetch
from dsprof.hooks.base import Hook, Target
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

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        if target.name == _RELEASE:
            return self.around(original, self._before_release, self._after_release)
        note = self._start if target.name == "start_event" else self._stop
        hook, recorder = self, self.recorder

        @functools.wraps(original)
        def method(self: Any, name: str, *args: Any) -> Any:
            if recorder.recording and not hook.broken:
                try:
                    note(name, *args)
                except Exception as error:
                    hook.fail(error)
            return original(self, name, *args)

        return method

    def _start(self, name: str) -> None:
        if name.endswith("fetch_wait"):
            self._wait_ns = clock()
        elif name.endswith("fetch_submit"):  # "prefetch_submit" too
            recorder = self.recorder
            outer = self._outer = recorder.context()
            self._fetch, self._submit_ns = next(recorder.ids), clock()
            recorder.become(Context(outer.request, outer.requested, outer.flush, self._fetch))

    def _stop(self, name: str, elements: int) -> None:
        if name.endswith("prefetch_submit"):
            self.recorder.become(self._outer)
            self._record("prefetch", elements, 0, self._submit_ns)
        elif name.endswith("fetch_submit"):
            self.recorder.become(self._outer)
        elif name.endswith("fetch_wait"):
            if elements:
                # DeepSpeed counts this rank's share of what it waits for.
                start_ns = self._submit_ns or self._wait_ns
                whole = elements * dist.get_world_size()
                self._record("fetch", whole, clock() - self._wait_ns, start_ns)
            self._submit_ns = 0

    def _before_release(self, coordinator: Any, param: Any, *args: Any, **kwargs: Any) -> Any:
        return param, str(param.ds_status), clock()

    def _after_release(self, release: Any) -> None:
        param, before, start_ns = release
        if str(param.ds_status) != before:
            self._fetch = next(self.recorder.ids)
            self._record("release", param.ds_numel, 0, start_ns)

    def _record(self, kind: str, elements: int, wait_ns: int, start_ns: int) -> None:
        recorder = self.recorder
        fetch = self._fetch or next(recorder.ids)
        self._fetch = 0
        scope, thread = recorder.scope, get_ident()
        recorder.add(Fetch(fetch, kind, elements, wait_ns, scope, start_ns, clock(), thread))
