"""Communication that no hook can see is noticed where it is used, and only there."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed.rpc as rpc
from torch._C import _distributed_c10d as c10d

from dsprof.hooks.base import Target
from dsprof.hooks.patching import Patch, PatchSet
from dsprof.hooks.wire import unseen
from dsprof.hooks.wire.unseen import UnseenHook
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Note

MEMORY = ("empty_strided_p2p", "rendezvous", "get_mempool_allocator")
TARGETS = {target.name: target for target in UnseenHook.targets}


class Graph:
    """As torch.cuda.CUDAGraph."""

    replays = 0

    def capture_begin(self, pool: object = None) -> None:
        """Begin."""

    def capture_end(self) -> None:
        """End."""

    def replay(self) -> None:
        self.replays += 1


class Engine:
    """As a DeepSpeed engine that knows DeepCompile."""

    def __init__(self, active: bool) -> None:
        self.active = active

    def is_deepcompile_active(self) -> bool:
        return self.active

    def _take_model_step(self, lr_kwargs: object) -> object:
        return lr_kwargs


class Before018:
    """As an engine of the releases that only know whether it is enabled."""

    def __init__(self, enabled: bool, is_compiled: bool) -> None:
        self.enabled, self.is_compiled = enabled, is_compiled

    def is_deepcompile_enabled(self) -> bool:
        return self.enabled

    def _take_model_step(self, lr_kwargs: object) -> object:
        return lr_kwargs


class Old:
    """As an engine of the releases that know nothing of it."""

    def _take_model_step(self, lr_kwargs: object) -> object:
        return lr_kwargs


def notes(recorder: Recorder) -> list[tuple[str, int]]:
    return [(d.text, d.count) for d in recorder.outbox.definitions if isinstance(d, Note)]


@pytest.fixture
def hook() -> UnseenHook:
    recorder = Recorder(lambda: True)
    assert recorder.arm()
    return UnseenHook(recorder)


@pytest.fixture
def patch(hook: UnseenHook, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def patch(owner: type, *names: str) -> None:
        for name in names:
            target = TARGETS[name]
            monkeypatch.setattr(owner, name, hook.wrap(target, getattr(owner, name)))

    return patch


@pytest.fixture
def graphs(patch: Callable[..., None]) -> None:
    patch(Graph, "capture_begin", "capture_end", "replay")


def capture(hook: UnseenHook, collectives: int) -> Graph:
    graph = Graph()
    graph.capture_begin(pool=None)
    hook.recorder.in_flight.captured += collectives
    graph.capture_end()
    return graph


@pytest.mark.usefixtures("graphs")
def test_replays_of_graphs_that_communicate_are_told_and_counted(hook: UnseenHook) -> None:
    computes, communicates = capture(hook, 0), capture(hook, 2)
    for _ in range(3):
        computes.replay()
        communicates.replay()
    assert notes(hook.recorder) == [(unseen.REPLAYS, 1)]  # at once, if the run gets killed
    hook.uninstall()
    assert notes(hook.recorder)[1:] == [(unseen.REPLAYS, 3)]
    assert (computes.replays, communicates.replays) == (3, 3)


@pytest.mark.usefixtures("graphs")
def test_graphs_that_only_compute_are_not_worth_a_word(hook: UnseenHook) -> None:
    capture(hook, 0).replay()
    hook.uninstall()
    assert notes(hook.recorder) == []


@pytest.mark.usefixtures("graphs")
def test_of_a_graph_from_before_it_is_said_that_nobody_knows(hook: UnseenHook) -> None:
    hook.recorder.recording = False
    graph = capture(hook, 0)
    graph.replay()
    assert notes(hook.recorder) == []
    hook.recorder.recording = True
    graph.replay()
    assert notes(hook.recorder) == [(unseen.UNKNOWN_REPLAYS, 1)]


@pytest.mark.usefixtures("graphs")
def test_no_graph_is_kept(hook: UnseenHook) -> None:
    capture(hook, 1).replay()
    gc.collect()
    assert len(hook._graphs) == 0


@pytest.mark.parametrize(
    ("engine", "is_told"),
    [
        (Engine(True), True),
        (Engine(False), False),
        (Before018(True, True), True),
        (Before018(True, False), False),
        (Before018(False, True), False),
        (Old(), False),
    ],
)
def test_deepcompile_is_told_where_it_is_active(
    hook: UnseenHook, patch: Callable[..., None], engine: Engine, is_told: bool
) -> None:
    patch(type(engine), "_take_model_step")
    assert engine._take_model_step({"lr": 1}) == {"lr": 1}
    expected = [(unseen.DEEPCOMPILE, 1)] if is_told else []
    assert notes(hook.recorder) == expected
    assert hook.recorder.failures == {}


def test_symmetric_memory_is_told_when_it_is_used(hook: UnseenHook) -> None:
    """The class is torch's own; the call fails here as it does without dsprof: no device."""
    owner = c10d._SymmetricMemory
    before = dict(vars(owner))
    patches = hook.patches("torch.distributed")
    assert {patch.name for patch in patches} == set(MEMORY)
    for patch in patches:
        patch.apply()
    try:
        with pytest.raises(TypeError, match="incompatible function arguments"):
            owner.rendezvous(1, "0")
        with pytest.raises(TypeError, match="incompatible function arguments"):
            owner.empty_strided_p2p("2")
    finally:
        assert all(patch.revert() for patch in patches)
    assert notes(hook.recorder) == [(unseen.SYMMETRIC_MEMORY, 1)]
    assert all(vars(owner)[name] is before[name] for name in MEMORY)
    hook.uninstall()
    assert notes(hook.recorder)[1:] == [(unseen.SYMMETRIC_MEMORY, 2)]


class Memory:
    """As torch's symmetric memory."""

    @staticmethod
    def rendezvous(tensor: object, group_name: str) -> tuple[object, str]:
        return tensor, group_name


@pytest.mark.parametrize("is_another_world", [False, True])
def test_what_is_set_up_before_the_first_collective_is_told(
    hook: UnseenHook, patch: Callable[..., None], is_another_world: bool
) -> None:
    hook.recorder.recording = False
    patch(Memory, "rendezvous")
    assert Memory.rendezvous(1, "0") == (1, "0")
    if is_another_world:
        hook.recorder.begin_again()
    assert notes(hook.recorder) == [(unseen.SYMMETRIC_MEMORY, 1)]


def test_nothing_is_told_once_recording_has_ended(
    hook: UnseenHook, patch: Callable[..., None]
) -> None:
    hook.recorder.stop()
    patch(Memory, "rendezvous")
    Memory.rendezvous(1, "0")
    assert notes(hook.recorder) == []


@pytest.mark.parametrize("is_late", [False, True])
def test_rpc_is_told_when_its_agent_starts_or_has_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_late: bool
) -> None:
    hook, patches = UnseenHook(Recorder(bool)), PatchSet()  # no process group by then
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{tmp_path}/store")
    monkeypatch.setenv("TP_SOCKET_IFNAME", "lo")

    def put_in() -> None:
        hook.install(rpc.api.__name__)
        patches.apply(hook.patches(rpc.api.__name__))

    try:
        if not is_late:
            put_in()
        rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)
        if is_late:
            put_in()
        assert rpc.rpc_sync("alone", max, args=(1, 2)) == 2
    finally:
        rpc.shutdown()
        patches.revert()
    assert notes(hook.recorder) == [(unseen.RPC, 1)]


def test_a_static_method_is_one_still(hook: UnseenHook) -> None:
    target = Target("m", "_SymmetricMemory", "rendezvous", "")
    patch = Patch(Memory, "rendezvous", lambda original: hook.wrap(target, original))
    patch.apply()
    assert Memory.rendezvous(1, group_name="0") == Memory().rendezvous(1, "0") == (1, "0")
    assert patch.revert()


def test_a_failure_leaves_the_call_alone(hook: UnseenHook, patch: Callable[..., None]) -> None:
    patch(Engine, "_take_model_step")

    class Broken(Engine):
        def is_deepcompile_active(self) -> bool:
            raise ValueError("renamed")

    assert Broken(True)._take_model_step(1) == 1
    assert hook.recorder.failures == {"unseen": "ValueError: renamed"}
