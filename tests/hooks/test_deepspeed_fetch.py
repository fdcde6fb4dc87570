"""Fetches, prefetches and releases of ZeRO-3, on stand-ins that call in DeepSpeed's order."""

from __future__ import annotations

import gc
import weakref
from collections import UserDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from dsprof.events import Fetch
from dsprof.hooks.deepspeed_fetch import DeepSpeedFetchHook
from dsprof.recorder import NOBODY, Recorder


@dataclass(eq=False)
class Param:
    """A parameter of ZeRO-3; `ds_active_sub_modules` are those that need it now."""

    ds_numel: int
    ds_active_sub_modules: set[str] = field(default_factory=lambda: {"module"})


class Coordinator:
    """DeepSpeed's coordinator, profiler and registry in one, as far as the hook sees them."""

    RANKS = 8

    def __init__(self, hook: DeepSpeedFetchHook) -> None:
        self._PartitionedParameterCoordinator__n_available_params = 0
        self.inside: list[int] = []
        self.contexts = hook.recorder.context
        by_name = {target.name: target for target in hook.targets}
        stop, gather, pop = (
            hook.wrap(target, original)
            for target, original in zip(
                by_name.values(), (_stop, _gather, UserDict.pop), strict=True
            )
        )
        self._stop, self._gather, self._pop = stop, gather, pop
        self.in_flight: UserDict[Param, str] = UserDict()

    def fetch(
        self, params: list[Param], ahead: Iterable[Param] = (), *, forward: bool = True
    ) -> None:
        """Do as `fetch_sub_module` does: gather what is not there, wait for it, gather ahead."""
        direction = "forward" if forward else "backward"
        missing = [param for param in params if param not in self.in_flight]
        if missing:
            self._gather(self, missing, forward)
            self._stop(self, f"{direction}_fetch_submit", len(missing))
        waited = 0
        for param in params:
            waited += param.ds_numel // self.RANKS
            self._pop(self.in_flight, param)
        self._stop(self, f"{direction}_fetch_wait", waited)
        self.prefetch(ahead, f"{direction}_prefetch_submit", forward=forward)

    def prefetch(self, ahead: Iterable[Param], event: str, *, forward: bool = True) -> None:
        ahead = list(ahead)
        if ahead:
            self._gather(self, ahead, forward)
            self._stop(self, event, sum(param.ds_numel for param in ahead))

    def pass_by(self) -> None:
        """Fetch for a module whose parameters are there."""
        self._stop(self, "forward_fetch_wait", 0)

    def release(self, *params: Param) -> None:
        self.__dict__["_PartitionedParameterCoordinator__n_available_params"] -= sum(
            param.ds_numel for param in params
        )


def _stop(coordinator: Any, event: str, elements: int) -> None:
    """DeepSpeed's `stop_event` with its timers off."""


def _gather(coordinator: Any, params: Iterable[Param], forward: bool) -> None:
    coordinator.inside.append(coordinator.contexts().fetch)
    for param in params:
        coordinator.in_flight[param] = "handle"
        coordinator._PartitionedParameterCoordinator__n_available_params += param.ds_numel


@pytest.fixture
def recorder() -> Recorder:
    recorder = Recorder(lambda: True)
    assert recorder.arm()
    return recorder


@pytest.fixture
def hook(recorder: Recorder) -> DeepSpeedFetchHook:
    return DeepSpeedFetchHook(recorder)


@pytest.fixture
def stage3(hook: DeepSpeedFetchHook) -> Coordinator:
    return Coordinator(hook)


def records(recorder: Recorder) -> list[Fetch]:
    return [record for record in recorder.buffer if isinstance(record, Fetch)]


def fetches(recorder: Recorder) -> list[tuple[str, int]]:
    return [(record.kind, record.elements) for record in records(recorder)]


def test_a_fetch_spans_its_gather_and_its_wait(recorder: Recorder, stage3: Coordinator) -> None:
    stage3.fetch([Param(80), Param(16)])
    (fetch,) = records(recorder)
    assert [fetch.id] == stage3.inside
    assert (fetch.kind, fetch.elements) == ("fetch", 96)  # whole parameters, not shares
    assert 0 < fetch.wait_ns < fetch.end_ns - fetch.start_ns
    assert recorder.context() is NOBODY


def test_what_was_prefetched_is_fetched_later(recorder: Recorder, stage3: Coordinator) -> None:
    first, second = Param(8), Param(16)
    stage3.fetch([first], ahead=[second])
    stage3.fetch([second])
    assert fetches(recorder) == [("fetch", 8), ("prefetch", 16), ("fetch", 16)]
    one, ahead, other = records(recorder)
    assert [one.id, ahead.id] == stage3.inside
    assert other.id not in stage3.inside
    assert ahead.wait_ns == 0
    assert ahead.end_ns <= other.start_ns
    assert 0 < other.wait_ns <= other.end_ns - other.start_ns


@pytest.mark.parametrize("event", ["backward_prefetch_submit", "backward_prefetch_wait"])
def test_a_prefetch_in_backward_has_two_names(
    recorder: Recorder, stage3: Coordinator, event: str
) -> None:
    """The second one in releases before 0.16."""
    stage3.prefetch([Param(30)], event, forward=False)
    assert fetches(recorder) == [("prefetch", 30)]
    assert [records(recorder)[0].id] == stage3.inside


def test_a_module_with_nothing_to_wait_for_is_no_fetch(
    recorder: Recorder, stage3: Coordinator
) -> None:
    stage3.pass_by()
    assert fetches(recorder) == []


def test_a_wait_for_what_no_module_needs_is_no_fetch(
    recorder: Recorder, stage3: Coordinator
) -> None:
    in_vain, needed = Param(8, set()), Param(16)
    stage3.prefetch([in_vain, needed], "forward_prefetch_submit")
    stage3._pop(stage3.in_flight, in_vain)  # as at the end of a pass, with no event
    stage3.fetch([needed])
    assert fetches(recorder) == [("prefetch", 24), ("fetch", 16)]


def test_a_wait_that_began_before_the_recording_is_passed_over(
    recorder: Recorder, stage3: Coordinator
) -> None:
    stage3._stop(stage3, "forward_fetch_wait", 3)
    assert fetches(recorder) == []
    assert not recorder.failures


def test_a_forward_within_backward_is_a_recomputation(
    recorder: Recorder, stage3: Coordinator
) -> None:
    def fetch_again(gradient: torch.Tensor) -> None:
        stage3.fetch([Param(8)], forward=True)
        stage3.fetch([Param(8)], forward=False)

    loss = torch.ones(1, requires_grad=True)
    loss.register_hook(fetch_again)
    fetch_again(loss)
    loss.backward()
    assert [one.is_recomputation for one in records(recorder)] == [False, False, True, False]


def test_a_gather_that_raises_leaves_the_context_as_it_was(
    recorder: Recorder, hook: DeepSpeedFetchHook
) -> None:
    def gather(coordinator: Any, params: Any, forward: bool) -> None:
        raise ConnectionError("a rank is gone")

    target = next(target for target in hook.targets if "gather" in target.name)
    with pytest.raises(ConnectionError, match="a rank is gone"):
        hook.wrap(target, gather)(Coordinator(hook), [], True)
    assert recorder.context() is NOBODY
    assert not recorder.failures


def test_what_backward_gathers_belongs_to_the_line_that_called_it(
    recorder: Recorder, stage3: Coordinator, hook: DeepSpeedFetchHook
) -> None:
    sites = []
    target = next(target for target in hook.targets if "gather" in target.name)
    gather = hook.wrap(target, lambda *_: sites.append(recorder.context().site))
    recorder.enter("backward", site=7)
    for forward in (False, True):
        gather(stage3, [], forward)
    assert sites == [7, 0]


def test_what_a_later_release_may_add_is_passed_on(
    recorder: Recorder, hook: DeepSpeedFetchHook
) -> None:
    calls: list[Any] = []
    stop = hook.wrap(hook.targets[0], lambda *a, **k: calls.append((a, k)))
    wait = "forward_fetch_wait"
    stop(None, wait)
    stop(None, wait, 0)
    stop(None, wait, 0, 1, of="x")
    stop(None, wait, num_elem=0)
    assert calls == [
        ((None, wait), {}),
        ((None, wait, 0), {}),
        ((None, wait, 0, 1), {"of": "x"}),
        ((None, wait, 0), {}),
    ]


# -- releases ---------------------------------------------------------------------------------


def test_what_is_let_go_between_two_gathers_is_one_release(
    recorder: Recorder, stage3: Coordinator
) -> None:
    first, second = Param(8), Param(24)
    stage3.fetch([first, second])
    stage3.release(first)
    stage3.pass_by()
    stage3.release(second)
    assert fetches(recorder) == [("fetch", 32)]
    stage3.fetch([first])
    assert fetches(recorder) == [("fetch", 32), ("release", 32), ("fetch", 8)]
    before, release, after = records(recorder)
    assert before.start_ns <= release.start_ns <= release.end_ns <= after.start_ns


def test_a_release_belongs_to_its_phase(recorder: Recorder, stage3: Coordinator) -> None:
    param, other = Param(8), Param(16)
    forward = recorder.enter("forward")
    stage3.fetch([param, other])
    stage3.release(param)
    recorder.leave(forward)
    backward = recorder.enter("backward")
    stage3.release(other)
    recorder.leave(backward)
    recorder.end_step("deepspeed")
    seen = [(one.scope.phase, one.elements) for one in records(recorder) if one.kind == "release"]
    assert seen == [("forward", 8), ("backward", 16)]


def test_nothing_let_go_is_no_release(recorder: Recorder, stage3: Coordinator) -> None:
    entered = recorder.enter("forward")
    stage3.fetch([Param(8)])
    recorder.leave(entered)
    assert fetches(recorder) == [("fetch", 8)]


def test_each_coordinator_lets_go_of_its_own(recorder: Recorder, hook: DeepSpeedFetchHook) -> None:
    one, other = Coordinator(hook), Coordinator(hook)
    first, second = Param(8), Param(16)
    one.fetch([first])
    other.fetch([second])
    one.release(first)
    other.fetch([Param(24)])
    assert fetches(recorder)[2:] == [("release", 8), ("fetch", 24)]


def test_a_coordinator_is_not_kept(recorder: Recorder, hook: DeepSpeedFetchHook) -> None:
    one = Coordinator(hook)
    one.fetch([Param(8)])
    kept = weakref.ref(one)
    del one
    gc.collect()
    assert kept() is None
    Coordinator(hook).fetch([Param(16)])
    recorder.leave(recorder.enter("forward"))
    assert fetches(recorder) == [("fetch", 8), ("fetch", 16)]
    assert len(hook._held) == 1


def test_what_is_let_go_last_is_on_record_when_the_hook_comes_out(
    recorder: Recorder, hook: DeepSpeedFetchHook, stage3: Coordinator
) -> None:
    param = Param(8)
    stage3.fetch([param])
    stage3.release(param)
    recorder.stop()
    hook.uninstall()
    hook.uninstall()
    assert fetches(recorder) == [("fetch", 8), ("release", 8)]


def test_a_new_trace_begins_with_what_is_there(recorder: Recorder, stage3: Coordinator) -> None:
    param, other = Param(8), Param(16)
    stage3.fetch([param, other])
    recorder.begin_again()
    stage3.release(param)
    recorder.leave(recorder.enter("forward"))
    assert fetches(recorder) == [("release", 8)]


def test_a_coordinator_of_another_release_makes_the_hook_inert(
    recorder: Recorder, hook: DeepSpeedFetchHook
) -> None:
    calls = []
    target = next(target for target in hook.targets if "gather" in target.name)
    gather = hook.wrap(target, lambda *given: calls.append(given))
    for _ in range(4):
        gather(object(), [], True)
    assert len(calls) == 4
    assert "deepspeed.fetch" in recorder.failures
    assert hook.broken
