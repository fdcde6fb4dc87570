"""Groups are the same on all their members and not the same after a re-initialisation."""

from __future__ import annotations

import contextlib
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from dsprof.hooks.wire import groups as module
from dsprof.hooks.wire.groups import Groups, GroupState, backend_of
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Group


def describe(rank: int, world_size: int) -> list[Group]:
    """Return what `rank` says of the groups of a 2-D mesh."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        mesh = init_device_mesh("cpu", (world_size // 8, 8), mesh_dim_names=("dp", "tp"))
        recorder = Recorder(lambda: True)
        groups = Groups(recorder)
        for group in (dist.group.WORLD, mesh.get_group("dp"), mesh.get_group("tp")):
            assert groups.state(group) is groups.state(group)
        return list(recorder.outbox.definitions)
    finally:
        dist.destroy_process_group()


def test_members_agree_in_a_world_of_1024() -> None:
    first, neighbour, other = describe(0, 1024), describe(1, 1024), describe(8, 1024)
    assert [group.size for group in first] == [1024, 128, 8]
    assert first[0].label == "world"
    assert "dp" in first[1].label
    assert "tp" in first[2].label
    assert first[0].key == neighbour[0].key == other[0].key
    assert first[2].key == neighbour[2].key != other[2].key
    assert first[1].key == other[1].key != neighbour[1].key


def test_the_world_after_a_restart_is_another_group() -> None:
    recorder = Recorder(lambda: True)
    groups = Groups(recorder)
    keys = []
    for _ in range(2):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
        keys.append(groups.state(dist.group.WORLD).group.key)
        dist.destroy_process_group()
    assert keys[0] != keys[1]


@pytest.mark.usefixtures("group")
def test_nothing_of_ours_runs_where_a_group_is_destroyed() -> None:
    """Python loses what a signal handler raises there: Ctrl-C in a teardown that hangs."""
    world = dist.group.WORLD
    Groups(Recorder(lambda: True)).state(world)
    refs = weakref.getweakrefs(world)
    assert refs
    assert [ref.__callback__ for ref in refs] == [None] * len(refs)


@pytest.mark.usefixtures("group")
def test_a_group_in_the_place_of_one_that_is_gone_is_another() -> None:
    class ByHand:
        def __init__(self, size: int) -> None:
            self.ranks = list(range(size))

    groups, places, sizes = Groups(Recorder(lambda: True)), set[int](), list[int]()
    while len(places) == len(sizes) < 1000:  # until a place is taken again
        group = ByHand(2 + len(sizes))
        places.add(id(group))
        sizes.append(groups.state(group).group.size)
        del group
    assert sizes == list(range(2, 2 + len(sizes)))
    assert len(places) < len(sizes)


@pytest.mark.usefixtures("group")
def test_the_ranks_of_a_group_live_as_long_as_it() -> None:
    """A program may make groups of many ranks all the time; their counters are small."""
    recorder = Recorder(lambda: True)
    groups, ranks = Groups(recorder), [0, 1]

    def described() -> GroupState:
        group = dist.new_group(ranks)
        state = groups.state(group)
        dist.destroy_process_group(group)
        return state

    states = [described() for _ in range(3)]
    kept = dist.new_group(ranks)
    states.append(groups.state(kept))
    groups.state(dist.group.WORLD)
    assert [state.group.ranks for state in states] == [[], [], [], ranks]
    assert [group.ranks for group in recorder.outbox.definitions][:4] == [ranks] * 4


@pytest.mark.usefixtures("group")
def test_roles_of_the_first_groups_are_looked_up_at_once_and_of_others_at_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look goes through modules of the program, which may make groups all the time."""
    looks = []
    monkeypatch.setattr(module, "_LOOKED_UP", 2)
    monkeypatch.setattr(module, "find_roles", lambda pgs: looks.append(pgs) or ["data"] * len(pgs))
    recorder = Recorder(lambda: True)
    groups = Groups(recorder)
    states = [groups.state(dist.new_group([0, 1])) for _ in range(4)]
    assert len(looks) == 2
    assert [state.group.role for state in states] == ["data", "data", "", ""]
    recorder.progress.rare_step_listeners.tell(0)
    assert len(looks) == 3
    assert [state.group.role for state in states] == ["data"] * 4


@pytest.mark.usefixtures("group")
def test_a_group_that_comes_back_as_another_object_counts_on_and_has_ranks_again() -> None:
    class ByHand:
        ranks = (4, 5)

    groups, first, second = Groups(Recorder(lambda: True)), ByHand(), ByHand()
    state = groups.state(first)
    del first
    groups.state(dist.group.WORLD)
    assert state.group.ranks == []
    assert groups.state(second) is state
    assert state.group.ranks == [4, 5]


@pytest.mark.usefixtures("group")
def test_threads_that_meet_a_group_at_once_count_its_collectives_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups, states = Groups(Recorder(lambda: True)), list[GroupState]()
    both, label = threading.Barrier(2), module._label

    def slow_label(*args: Any) -> str:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(timeout=0.2)
        return label(*args)

    monkeypatch.setattr(module, "_label", slow_label)
    meet = [
        threading.Thread(target=lambda: states.append(groups.state(dist.group.WORLD)))
        for _ in range(2)
    ]
    for thread in meet:
        thread.start()
    for thread in meet:
        thread.join()
    assert states[0] is states[1]


@pytest.mark.parametrize("level", [dist.DebugLevel.OFF, dist.DebugLevel.DETAIL])
def test_a_group_that_torch_has_wrapped_says_so(level: dist.DebugLevel, tmp_path: Path) -> None:
    recorder = Recorder(lambda: True)
    dist.set_debug_level(level)
    try:
        store = dist.FileStore(str(tmp_path / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        Groups(recorder).state(dist.group.WORLD)
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)
        dist.destroy_process_group()
    (described,) = recorder.outbox.definitions
    assert described.is_checked is (level is dist.DebugLevel.DETAIL)


def test_a_group_that_cannot_be_asked_is_described_all_the_same() -> None:
    assert module._is_checked(object()) is False


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        (None, "gloo"),
        ("gloo", "gloo"),
        ("cpu:gloo", "gloo"),
        ("cpu:gloo,cuda:fake", "cpu:gloo,cuda:fake"),
    ],
)
def test_a_backend_is_named_also_where_the_program_leaves_the_choice_to_torch(
    chosen: str | None, named: str
) -> None:
    """torch calls it undefined, and rules for its backend would not apply."""
    dist.init_process_group(chosen, store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert backend_of() == named
        groups = Groups(Recorder(lambda: True))
        assert groups.state(dist.group.WORLD).group.backend == named
    finally:
        dist.destroy_process_group()


def test_a_group_without_a_configuration_keeps_the_name_that_torch_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A library may have made it, and put it in the place of the default one."""
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    try:
        monkeypatch.setattr(dist.distributed_c10d, "_pg_backend_config", {})
        assert backend_of() == "undefined"
    finally:
        dist.destroy_process_group()
