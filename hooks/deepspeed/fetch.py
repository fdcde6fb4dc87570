"""ZeRO-3 parameters: fetches, prefetches and releases, and the time that waiting for them took.

DeepSpeed reports these itself to a profiler object that does nothing unless its timers are on;
its two methods are called around each fetch in any case.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from operator import attrgetter
from threading import get_ident
from typing import Any

import torch
import torch.distributed as dist

from dsprof.hooks.base import Hook, Target, hide_from_dynamo
from dsprof.hooks.deepspeed.known_engines import KnownEngines
from dsprof.hooks.deepspeed.owners import COORDINATOR
from dsprof.recording.recorder.hot_state import NOBODY, Context, Fetching
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Fetch
from dsprof.trace.scope import clock

_PROFILER = ("deepspeed.runtime.zero.partitioned_param_profiler", "PartitionedParameterProfiler")
_RELEASE = "_PartitionedParameterCoordinator__release_param"

_FETCHES = ("forward_fetch_submit", "backward_fetch_submit")
_PREFETCHES = (
    *("forward_prefetch_submit", "backward_prefetch_submit"),
    "backward_prefetch_wait",  # its name before DeepSpeed 0.16
)
_SUBMITS = frozenset(_FETCHES + _PREFETCHES)
_WAITS = frozenset(("forward_fetch_wait", "backward_fetch_wait"))
_OF_BACKWARD = frozenset(name for name in _SUBMITS if name.startswith("backward"))

_KINDS = {
    name: kind | (4 if name.startswith("backward") else 8)
    for kind, names in enumerate((_FETCHES, _PREFETCHES, _WAITS), 1)
    for name in names
}
"""As in C, where 4 says that backward fetches, and 8 that a forward does."""

_IN_C = {"start_event": "fetch start", "stop_event": "fetch stop", _RELEASE: "release"}

_NO_ENGINE = -1
_NOT_GIVEN = object()
_OF_RELEASE = attrgetter("thread", "step", "micro_step", "phase", "engine")
_graph_task: Callable[[], int] = torch._C._current_graph_task_id  # -1 unless autograd is at work


class DeepSpeedFetchHook(Hook):
    """Records what stage 3 all-gathers, waits for and releases."""

    name = "deepspeed.fetch"
    targets = (
        Target(*_PROFILER, "start_event", "begins a fetch, prefetch or wait"),
        Target(*_PROFILER, "stop_event", "ends a fetch, prefetch or wait"),
        Target(*COORDINATOR, _RELEASE, "releases a gathered parameter"),
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._state = Fetching()  # its release goes on as long as nothing is fetched
        self._shares: dict[int, int] = {}  # engine -> ranks that a parameter is shared out over
        # Of engines whose parameters differ in that: what is being gathered.
        self._in_flight: dict[int, weakref.ref[Any]] = {}
        self._in_flight_elements: int | None = None  # when the wait began
        hook = DeepSpeedFetchHook
        noting = (
            hook._begin,
            hook._end,
            hook._record,
            hook._note_in_flight,
            hook._share,
        )
        hide_from_dynamo(*noting, hook._released, hook._end_release, and_calls=True)
        recorder.shared(KnownEngines).append(self._learn)
        recorder.progress.step_listeners.append(self._end_release)
        recorder.trace_listeners.append(self._forget)

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        wrap = {
            "start_event": self._wrap_start,
            "stop_event": self._wrap_stop,
            _RELEASE: self._wrap_release,
        }
        method = wrap[target.name](original)
        held = (self._state, _KINDS, self._shares, _graph_task)
        return self.in_c(_IN_C[target.name], original, method, held)

    def _wrap_start(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hook, hot, is_compiling = self, self.recorder.hot, torch.compiler.is_dynamo_compiling
        in_flight, state = self._in_flight, self._state

        # Hundreds of calls per step: a wait for each module, most of which wait for nothing.
        @functools.wraps(original)
        def start_event(self: Any, name: str, *more: Any, **named: Any) -> Any:
            if name in _WAITS:
                if not hot.recording:
                    return original(self, name, *more, **named)
                if in_flight:
                    hook._note_in_flight()
                state.wait_ns = clock()
            elif name in _SUBMITS and not is_compiling() and hot.recording:
                hook._begin(name)
            if more or named:  # of no release yet; a plain call takes less
                return original(self, name, *more, **named)
            return original(self, name)

        hide_from_dynamo(start_event)
        return start_event

    def _wrap_stop(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hook, hot, is_compiling = self, self.recorder.hot, torch.compiler.is_dynamo_compiling
        ends = {
            **dict.fromkeys(_FETCHES, self._end),
            **dict.fromkeys((*_PREFETCHES, *_WAITS), self._record),
        }

        @functools.wraps(original)
        def stop_event(
            self: Any, name: str, num_elem: Any = _NOT_GIVEN, *more: Any, **named: Any
        ) -> Any:
            if num_elem is _NOT_GIVEN:  # of no release yet
                return original(self, name, *more, **named)
            end = ends.get(name) if num_elem else None
            if end is not None and not (is_compiling() or hook.broken) and hot.recording:
                try:
                    end(num_elem, name)
                except Exception as error:
                    hook.fail(error)
            if more or named:  # likewise; a plain call takes less
                return original(self, name, num_elem, *more, **named)
            return original(self, name, num_elem)

        hide_from_dynamo(stop_event)
        return stop_event

    def _begin(self, name: str) -> None:
        if self.broken:
            return
        try:
            state = self._state
            if state.release is not None:
                self._end_release()
            recorder, contexts = self.recorder, self.recorder.contexts
            outer = contexts.current()
            outer = state.outer = NOBODY if outer.fetch else outer  # of a fetch that raised
            state.fetch, state.submit_ns = next(recorder.ids), clock()
            site = recorder.progress.scope.site if name in _OF_BACKWARD else 0
            contexts.become(
                Context(outer.request, outer.requested, outer.flush, state.fetch, site=site)
            )
        except Exception as error:
            self.fail(error)

    def _end(self, elements: int, name: str) -> None:
        self.recorder.contexts.become(self._state.outer)

    def _record(self, elements: int, name: str) -> None:
        """Record a prefetch that was submitted, or a fetch that was waited for.

        One function and few calls: it runs for each gather of a step.
        """
        now, recorder, thread, state = clock(), self.recorder, get_ident(), self._state
        if state.release is not None:
            self._end_release()
        scope, start_ns = recorder.hot.scope, state.submit_ns
        if name in _WAITS:
            kind, wait_ns, start_ns = "fetch", now - state.wait_ns, start_ns or state.wait_ns
            before = self._in_flight_elements
            left = self._sum_in_flight() if self._in_flight else None
            if left is not None and before is not None:
                elements = before - left
            else:  # DeepSpeed counts this rank's share of what it waits for.
                elements *= self._shares.get(scope.engine) or self._share(scope.engine)
        else:
            kind, wait_ns = "prefetch", 0
            recorder.contexts.become(state.outer)
        number = state.fetch or next(recorder.ids)
        state.fetch = state.submit_ns = 0
        # Within backward; not asked in a forward, for the answer is far from all caches.
        again = scope.phase != "forward" and name.startswith("forward") and _graph_task() != -1
        recorder.outbox.add(
            Fetch(
                number,
                kind,
                elements,
                start_ns,
                now,
                wait_ns,
                again,
                scope.step,
                scope.micro_step,
                scope.phase,
                engine=scope.engine,
                thread=thread,
            )
        )

    # -- how large the whole of a share is -----------------------------------------------------

    def _learn(self, engine: Any, number: int) -> None:
        """Note over how many ranks the parameters of an engine are shared out."""
        groups = {id(group): group for group in map(_sharing, engine.module.parameters())}
        sizes = {dist.get_world_size(one) for one in groups.values() if one is not None}
        if sizes:
            # Outside the phases of all engines the one that was met last is the best guess.
            self._shares[number] = self._shares[_NO_ENGINE] = max(sizes)
        if len(sizes) > 1:  # experts, beside what all ranks share
            # Not from the coordinator: the ways to it differ by release, and without an optimizer.
            in_flight = weakref.ref(engine.module.ds_inflight_param_registry)
            self._in_flight[number] = self._in_flight[_NO_ENGINE] = in_flight
        elif sizes:
            self._in_flight.pop(_NO_ENGINE, None)
        self._state.is_watched = bool(self._in_flight)

    def _share(self, engine: int) -> int:
        """Return the ranks that parameters of an engine unknown by now are shared out over."""
        ranks = self._shares.get(_NO_ENGINE) or dist.get_world_size()
        return self._shares.setdefault(engine, ranks)

    def _note_in_flight(self) -> None:
        """Remember how much is being gathered before the wait for some of it."""
        try:
            self._in_flight_elements = self._sum_in_flight()
        except Exception as error:
            self.fail(error)

    def _sum_in_flight(self) -> int | None:
        """Return the elements that are being gathered for the engine of the phase, if known."""
        found = self._in_flight.get(self.recorder.progress.scope.engine)
        in_flight = found() if found is not None else None
        return None if in_flight is None else sum(param.ds_numel for param in in_flight)

    def _wrap_release(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hook, hot, is_compiling = self, self.recorder.hot, torch.compiler.is_dynamo_compiling

        @functools.wraps(original)
        def release(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not hot.recording or hook.broken:
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
        state, scope = self._state, self.recorder.hot.scope
        of_now = (get_ident(), scope.step, scope.micro_step, scope.phase, scope.engine)
        going_on = state.release
        if not isinstance(going_on, Fetch) or _OF_RELEASE(going_on) != of_now:
            self._end_release()
            thread, step, micro_step, phase, engine = of_now
            going_on = state.release = Fetch(
                next(self.recorder.ids),
                "release",
                0,
                start_ns,
                0,
                step=step,
                micro_step=micro_step,
                phase=phase,
                engine=engine,
                thread=thread,
            )
        going_on.elements += elements
        going_on.end_ns = clock()

    def _end_release(self, step: int = -1) -> None:
        """Hand over the release that goes on: something is fetched, or a step has ended."""
        if (release := self._state.release) is not None:
            self._state.release = None
            self.recorder.outbox.add(release)

    def uninstall(self) -> None:
        self._end_release()

    def _forget(self) -> None:
        self._state.release = None


def _sharing(param: Any) -> Any:
    """Return the group that shares a parameter; None if it is whole on each rank."""
    mics = getattr(getattr(param, "comm", None), "param_shard_group", None)  # releases with MiCS
    return mics or getattr(param, "ds_process_group", None)
