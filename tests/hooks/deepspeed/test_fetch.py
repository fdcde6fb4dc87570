"""Fetches, prefetches and releases of ZeRO-3, on stand-ins that call in DeepSpeed's order."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dsprof.hooks.deepspeed.fetch import DeepSpeedFetchHook
from dsprof.hooks.deepspeed.known_engines import KnownEngines
from dsprof.recording.recorder.contexts import NOBODY
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Fetch
from tests.handed_over import handed_over
from tests.hooks.conftest import WORLD_SIZE

pytestmark = pytest.mark.usefixtures("in_c_and_in_python")


class Stage3:
    """DeepSpeed's profiler and coordinator, as far as the hook sees them."""

    def __init__(self, recorder: Recorder) -> None:
        self.hook = DeepSpeedFetchHook(recorder)
        wrapped = {t.name: self.hook.wrap(t, self._original) for t in self.hook.targets}
        self.start, self.stop, self.release_param = wrapped.values()
        self.contexts: list[int] = []
        self.recorder = recorder

    def _original(self, *args: Any) -> None:
        self.contexts.append(self.recorder.contexts.current().fetch)

    def gather(self, event: str, elements: int) -> int:
        """Submit a gather; returns the fetch that its collectives would name."""
        self.start(self, event)
        inside = self.recorder.contexts.current().fetch
        self.stop(self, event, elements)
        return inside

    def wait(self, event: str, elements: int, *, done: Callable[[], object] = list) -> None:
        self.start(self, event)
        done()
        self.stop(self, event, elements)


class Registry(list[Any]):
    """What is being gathered; a plain list cannot be referred to weakly."""


def fetches(recorder: Recorder) -> list[tuple[str, int]]:
    return [(r.kind, r.elements) for r in handed_over(recorder, Fetch)]


@pytest.mark.usefixtures("group")
def test_a_fetch_spans_its_gather_and_its_wait(recorder: Recorder) -> None:
    stage3 = Stage3(recorder)
    inside = stage3.gather("forward_fetch_submit", 10)
    stage3.wait("forward_fetch_wait", 10)
    (fetch,) = handed_over(recorder)
    assert isinstance(fetch, Fetch)
    assert fetch.id == inside
    assert (fetch.kind, fetch.elements) == ("fetch", 10 * WORLD_SIZE)
    assert 0 < fetch.wait_ns < fetch.end_ns - fetch.start_ns
    assert recorder.contexts.current() is NOBODY


def engine(*params: Any, in_flight: Any = None) -> Any:
    """An engine whose parameters are shared out over groups, and what it gathers."""
    module = SimpleNamespace(parameters=lambda: params, ds_inflight_param_registry=in_flight)
    return SimpleNamespace(module=module)


def param(group: Any, elements: int = 1) -> Any:
    return SimpleNamespace(ds_process_group=group, ds_numel=elements)


@pytest.mark.usefixtures("group")
def test_a_share_is_multiplied_by_the_ranks_that_share_a_parameter(recorder: Recorder) -> None:
    stage3, pair, four = Stage3(recorder), dist.new_group([0, 1]), dist.new_group([0, 1, 2, 3])
    recorder.shared(KnownEngines).tell(engine(param(pair), SimpleNamespace()), 0)
    recorder.shared(KnownEngines).tell(engine(param(four)), 1)
    mics = SimpleNamespace(comm=SimpleNamespace(param_shard_group=pair), ds_process_group=four)
    recorder.shared(KnownEngines).tell(engine(mics), 2)
    recorder.shared(KnownEngines).tell(engine(param(four)), 3)
    recorder.shared(KnownEngines).tell(engine(SimpleNamespace()), 4)  # nothing is sharded
    for number in (0, 1, 2):
        entered = recorder.progress.enter("forward", number)
        stage3.wait("forward_fetch_wait", 10)
        recorder.progress.leave(entered)
    stage3.wait("forward_fetch_wait", 10)
    assert [elements for _, elements in fetches(recorder)] == [20, 40, 20, 40]


def experts(registry: Registry) -> tuple[Any, list[Any]]:
    """An engine with a dense parameter and an expert's, which are both being gathered."""
    dense, expert = param(dist.group.WORLD, 80), param(dist.new_group([0, 1]), 30)
    registry += [expert, dense]
    return engine(dense, expert, in_flight=registry), [expert, dense]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("is_in_a_phase", [True, False])
def test_experts_are_shared_by_fewer_ranks_than_what_surrounds_them(
    recorder: Recorder, *, is_in_a_phase: bool
) -> None:
    stage3, registry = Stage3(recorder), Registry()
    built, (expert, _) = experts(registry)
    recorder.shared(KnownEngines).tell(built, 0)
    if is_in_a_phase:  # else the module is called without its engine
        recorder.progress.enter("forward", 0)
    stage3.wait("forward_fetch_wait", 15, done=lambda: registry.remove(expert))
    stage3.wait("forward_fetch_wait", 10, done=registry.clear)
    assert fetches(recorder) == [("fetch", 30), ("fetch", 80)]
    assert not recorder.failures


@pytest.mark.usefixtures("group")
def test_shares_do_where_nobody_tells_what_is_being_gathered(recorder: Recorder) -> None:
    stage3 = Stage3(recorder)
    recorder.shared(KnownEngines).tell(
        engine(param(dist.group.WORLD), param(dist.new_group([0, 1]))), 0
    )
    recorder.progress.enter("forward", 0)
    stage3.wait("forward_fetch_wait", 10)
    assert fetches(recorder) == [("fetch", 10 * WORLD_SIZE)]


@pytest.mark.usefixtures("group")
def test_what_is_being_gathered_is_not_kept(recorder: Recorder) -> None:
    stage3, registry = Stage3(recorder), Registry()
    built, params = experts(registry)
    kept = weakref.ref(registry)
    recorder.shared(KnownEngines).tell(built, 0)
    recorder.progress.enter("forward", 0)
    stage3.wait("forward_fetch_wait", 10)
    del built, params, registry
    gc.collect()
    assert kept() is None
    stage3.wait("forward_fetch_wait", 10)
    assert fetches(recorder)[-1] == ("fetch", 10 * WORLD_SIZE)
    assert not recorder.failures


@pytest.mark.usefixtures("group")
def test_the_engine_that_was_met_last_gathers_outside_all_phases(recorder: Recorder) -> None:
    stage3, registry = Stage3(recorder), Registry()
    built, _ = experts(registry)
    recorder.shared(KnownEngines).tell(built, 0)
    recorder.shared(KnownEngines).tell(engine(param(dist.new_group([0, 1]))), 1)
    stage3.wait("forward_fetch_wait", 10)
    assert fetches(recorder) == [("fetch", 20)]


def test_an_engine_of_another_release_is_no_harm(recorder: Recorder) -> None:
    Stage3(recorder)
    recorder.shared(KnownEngines).tell(SimpleNamespace(module=None), 0)
    assert recorder.failures


@pytest.mark.usefixtures("group")
def test_a_forward_within_backward_is_a_recomputation(recorder: Recorder) -> None:
    stage3 = Stage3(recorder)

    def fetch_again(gradient: torch.Tensor) -> None:
        for direction in ("forward", "backward"):
            stage3.gather(f"{direction}_fetch_submit", 10)
            stage3.wait(f"{direction}_fetch_wait", 10)

    loss = torch.ones(1, requires_grad=True)
    loss.register_hook(fetch_again)
    fetch_again(loss)
    loss.backward()
    seen = [record.is_recomputation for record in handed_over(recorder, Fetch)]
    assert seen == [False, False, True, False]


def test_a_fetch_that_raised_ends_with_the_next_one(recorder: Recorder) -> None:
    stage3 = Stage3(recorder)
    stage3.start(stage3, "forward_fetch_submit")
    stage3.gather("forward_fetch_submit", 10)
    assert recorder.contexts.current() is NOBODY


@pytest.mark.parametrize("event", ["backward_prefetch_submit", "backward_prefetch_wait"])
def test_a_prefetch_has_an_id_of_its_own(recorder: Recorder, event: str) -> None:
    """In backward it goes by the second name in releases before 0.16."""
    stage3 = Stage3(recorder)
    inside = stage3.gather(event, 30)
    assert fetches(recorder) == [("prefetch", 30)]
    assert handed_over(recorder)[0].id == inside


def test_what_a_later_release_may_add_is_passed_on(recorder: Recorder) -> None:
    hook, calls = DeepSpeedFetchHook(recorder), []
    start, stop, _ = (hook.wrap(t, lambda *a, **k: calls.append((a, k))) for t in hook.targets)
    start(None, "forward_fetch_wait")
    start(None, "forward_fetch_wait", 1, of="x")
    stop(None, "forward_fetch_wait", 0)
    stop(None, "forward_fetch_wait", 0, 1, of="x")
    stop(None, "forward_fetch_wait", num_elem=0)
    stop(None, name="forward_fetch_wait")
    stop(None, "forward_prefetch_submit", of="x")
    wait = "forward_fetch_wait"
    assert calls == [
        ((None, wait), {}),
        ((None, wait, 1), {"of": "x"}),
        ((None, wait, 0), {}),
        ((None, wait, 0, 1), {"of": "x"}),
        ((None, wait, 0), {}),
        ((None, wait), {}),
        ((None, "forward_prefetch_submit"), {"of": "x"}),
    ]
    assert not handed_over(recorder)


def test_a_module_with_nothing_to_wait_for_is_no_fetch(recorder: Recorder) -> None:
    stage3 = Stage3(recorder)
    stage3.wait("forward_fetch_wait", 0)
    stage3.gather("forward_all_gather", 5)
    assert fetches(recorder) == []


def release(self: Any, param: Any) -> None:
    param.ds_status = "not available"


def test_a_release_counts_if_it_let_something_go(recorder: Recorder) -> None:
    stage3 = Stage3(recorder)
    param = SimpleNamespace(ds_status="available", ds_numel=7)
    stage3.release_param(stage3, param)
    recorder.progress.end_step("deepspeed")
    assert fetches(recorder) == []
    stage3.hook.wrap(stage3.hook.targets[-1], release)(stage3, param)
    recorder.progress.end_step("deepspeed")
    assert fetches(recorder) == [("release", 7)]


@pytest.mark.usefixtures("group")
def test_what_is_let_go_between_two_fetches_is_one_release(recorder: Recorder) -> None:
    stage3 = Stage3(recorder)
    let_go = stage3.hook.wrap(stage3.hook.targets[-1], release)
    for elements in (7, 5):
        let_go(stage3, SimpleNamespace(ds_status="available", ds_numel=elements))
        stage3.wait("forward_fetch_wait", 0)
    stage3.gather("forward_prefetch_submit", 4)
    assert fetches(recorder) == [("release", 12), ("prefetch", 4)]
    let_go(stage3, SimpleNamespace(ds_status="available", ds_numel=1))
    stage3.wait("forward_fetch_wait", 4)
    assert fetches(recorder)[2:] == [("release", 1), ("fetch", 4 * WORLD_SIZE)]
    let_go(stage3, SimpleNamespace(ds_status="available", ds_numel=3))
    recorder.progress.enter("backward")
    let_go(stage3, SimpleNamespace(ds_status="available", ds_numel=2))
    recorder.progress.end_step("deepspeed")
    assert fetches(recorder)[4:] == [("release", 3), ("release", 2)]
    phases = [r.phase for r in handed_over(recorder, Fetch)]
    assert phases[4:] == ["", "backward"]


def test_what_is_let_go_last_is_on_record_when_the_hook_comes_out(recorder: Recorder) -> None:
    stage3 = Stage3(recorder)
    let_go = stage3.hook.wrap(stage3.hook.targets[-1], release)
    let_go(stage3, SimpleNamespace(ds_status="available", ds_numel=7))
    recorder.stop()
    stage3.hook.uninstall()
    stage3.hook.uninstall()
    assert fetches(recorder) == [("release", 7)]


def test_a_parameter_of_another_release_makes_the_hook_inert(recorder: Recorder) -> None:
    stage3 = Stage3(recorder)
    stage3.release_param(stage3, object())
    assert "deepspeed.fetch" in recorder.failures
    stage3.release_param(stage3, object())
    assert len(stage3.contexts) == 2
