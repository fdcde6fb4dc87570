"""ZeRO-3 parameters: fetches, prefetches and releases, and the time that waiting for them took.

DeepSpeed tells the end of each wait to a profiler object that does nothing unless its timers are
on. It does so for each module, most of which wait for nothing: all else is noted where something is
gathered or about to be waited for. Releases are not watched one by one: how many elements are there
is looked up before each gather and at the end of each phase, and what is missing then was let go
since the last look.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch

from dsprof.events import Context, Fetch, clock
from dsprof.hooks.base import Hook, Target, hide_from_dynamo
from dsprof.recorder import Recorder

_PROFILER = ("deepspeed.runtime.zero.partitioned_param_profiler", "PartitionedParameterProfiler")
_MODULE = "deepspeed.runtime.zero.partitioned_param_coordinator"
_COORDINATOR = (_MODULE, "PartitionedParameterCoordinator")
_IN_FLIGHT = (_MODULE, "InflightParamRegistry")
_GATHER = "_PartitionedParameterCoordinator__all_gather_params"

_PREFETCHES = (
    *("forward_prefetch_submit", "backward_prefetch_submit"),
    "backward_prefetch_wait",  # its name before DeepSpeed 0.16
)
_WAITS = frozenset(("forward_fetch_wait", "backward_fetch_wait"))
_ENDS = _WAITS.union(_PREFETCHES)

_NOT_GIVEN = object()
_graph_task: Callable[[], int] = torch._C._current_graph_task_id  # -1 unless autograd is at work


class Held:
    """What a coordinator held when it was looked at last."""

    __slots__ = ("elements", "ref")

    def __init__(self, coordinator: Any) -> None:
        self.ref = weakref.ref(coordinator)
        self.elements = held_by(coordinator)


def held_by(coordinator: Any) -> int:
    """Return the elements of all parameters that are gathered or being gathered."""
    elements: int = coordinator._PartitionedParameterCoordinator__n_available_params
    return elements


class DeepSpeedFetchHook(Hook):
    """Records what stage 3 gathers, waits for and lets go."""

    name = "deepspeed.fetch"
    targets = (
        Target(*_PROFILER, "stop_event", "ends a prefetch, or a wait for a module's parameters"),
        Target(*_COORDINATOR, _GATHER, "gathers parameters, and knows how many elements are there"),
        Target(*_IN_FLIGHT, "pop", "hands out a gather that is about to be waited for"),
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._fetch = 0  # whose gather was submitted last
        self._submit_ns = 0
        self._awaited = 0  # elements
        self._wait_ns = 0
        self._held: list[Held] = []
        self._looked_ns = 0
        hook = DeepSpeedFetchHook
        noting = (hook._await, hook._record, hook._look)
        hide_from_dynamo(*noting, and_calls=True)
        recorder.phase_listeners.append(self._look)
        recorder.world_listeners.append(self._forget)

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        wrap = {
            "stop_event": self._wrap_stop,
            _GATHER: self._wrap_gather,
            "pop": self._wrap_pop,
        }
        return wrap[target.name](original)

    def _wrap_stop(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hook, recorder, is_compiling = self, self.recorder, torch.compiler.is_dynamo_compiling

        # A hundred calls a step: one for each module, most of which have waited for nothing.
        @functools.wraps(original)
        def stop_event(
            self: Any, name: str, num_elem: Any = _NOT_GIVEN, *more: Any, **named: Any
        ) -> Any:
            if num_elem and name in _ENDS and not is_compiling() and recorder.recording:
                hook._record(name, num_elem)
            if more or named:  # of no release yet; a plain call takes less
                return original(self, name, num_elem, *more, **named)
            if num_elem is _NOT_GIVEN:
                return original(self, name)
            return original(self, name, num_elem)

        hide_from_dynamo(stop_event)
        return stop_event

    def _wrap_gather(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return self.around(original, self._begin, self._end)

    def _begin(
        self, coordinator: Any, params: Any, forward: bool, *args: Any, **kwargs: Any
    ) -> tuple[Context, Any]:
        """Gather for a fetch or a prefetch, as its end will tell."""
        self._look()
        recorder = self.recorder
        outer = recorder.context()
        self._fetch, self._submit_ns = next(recorder.ids), clock()
        site = 0 if forward else recorder.scope.site
        recorder.become(
            Context(outer.request, outer.requested, outer.flush, self._fetch, site=site)
        )
        return outer, coordinator

    def _end(self, begun: tuple[Context, Any]) -> None:
        outer, coordinator = begun
        self.recorder.become(outer)
        self._looked_ns = clock()
        for held in self._held:
            if held.ref() is coordinator:
                held.elements = held_by(coordinator)
                return
        alive = [held for held in self._held if held.ref() is not None]
        self._held = [*alive, Held(coordinator)]

    def _wrap_pop(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hook, recorder, is_compiling = self, self.recorder, torch.compiler.is_dynamo_compiling

        @functools.wraps(original)
        def pop(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and recorder.recording and not hook.broken:
                try:
                    hook._await(args[0])
                except Exception as error:
                    hook.fail(error)
            return original(self, *args, **kwargs)

        hide_from_dynamo(pop)
        return pop

    def _await(self, param: Any) -> None:
        """Count what a module waits for; what is waited for by none was gathered in vain."""
        if param.ds_active_sub_modules:
            self._awaited += param.ds_numel
            self._wait_ns = self._wait_ns or clock()

    def _record(self, name: str, elements: int) -> None:
        """Record a prefetch that was submitted, or a fetch that was waited for.

        DeepSpeed counts whole parameters where it prefetches, but this rank's shares of what it
        waits for: what is waited for is counted here.
        """
        if self.broken:
            return
        try:
            now, recorder = clock(), self.recorder
            scope, start_ns, wait_ns = recorder.scope, self._submit_ns or self._wait_ns, 0
            kind = "prefetch"
            if name in _WAITS:
                if not self._wait_ns:  # nothing was recorded yet when it began
                    return
                kind, elements, wait_ns = "fetch", self._awaited, now - self._wait_ns
                self._awaited = self._wait_ns = 0
            number = self._fetch or next(recorder.ids)
            self._fetch = self._submit_ns = 0
            # Within backward; not asked in a forward, for the answer is far from all caches.
            again = scope.phase != "forward" and name[0] == "f" and _graph_task() != -1
            thread = get_ident()
            recorder.add(
                Fetch(number, kind, elements, wait_ns, scope, start_ns, now, thread, again)
            )
        except Exception as error:
            self.fail(error)

    def _look(self) -> None:
        """Record what has been let go since the last look."""
        now, let_go = clock(), 0
        for held in self._held:
            coordinator = held.ref()
            elements = held.elements if coordinator is None else held_by(coordinator)
            let_go += max(held.elements - elements, 0)
            held.elements = elements
        if let_go:
            recorder = self.recorder
            number, scope = next(recorder.ids), recorder.scope
            release = Fetch(number, "release", let_go, 0, scope, self._looked_ns, now, get_ident())
            recorder.add(release)
        self._looked_ns = now

    def uninstall(self) -> None:
        self._look()

    def _forget(self) -> None:
        self._fetch = self._submit_ns = self._awaited = self._wait_ns = 0
        self._looked_ns = clock()
