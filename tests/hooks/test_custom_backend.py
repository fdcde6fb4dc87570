"""A collective library that a site puts behind deepspeed.comm is recorded, timed and marked."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dsprof.hooks.deepspeed.comm import DeepSpeedCommHook
from dsprof.hooks.wire.interception import CompleteHook
from dsprof.recording.recorder.recorder import Recorder
from tests.handed_over import collectives
from tests.hooks.described import group_of

Backend = pytest.importorskip("deepspeed.comm.backend").Backend
Install = Callable[..., Recorder]


class Handle:
    """What the library gives for an asynchronous collective."""

    def wait(self) -> None:
        time.sleep(0.05)


class Site(Backend):  # type: ignore[misc, valid-type]
    """The site's library; what it lacks, torch does."""

    def all_reduce(self, tensor: Any, op: Any = None, group: Any = None, async_op: bool = False):
        return Handle() if async_op else time.sleep(0.05)

    def reduce_scatter_tensor(self, output: Any, tensor: Any, group: Any = None):
        return None

    def broadcast(self, tensor: Any, src: int = 0):
        return dist.broadcast(tensor, src)


def test_it_is_timed_and_marked_as_not_on_the_wire(install: Install) -> None:
    recorder = install(CompleteHook, DeepSpeedCommHook)
    pair = dist.new_group([0, 1])
    Site().all_reduce(torch.zeros(4), None, pair)
    Site().all_reduce(torch.zeros(8), None, None, True).wait()
    sync, later = collectives(recorder)
    assert [(r.op, r.nbytes, r.on_wire) for r in (sync, later)] == [
        ("all_reduce", 16, False),
        ("all_reduce", 32, False),
    ]
    assert [group_of(recorder, record).size for record in (sync, later)] == [2, 8]
    assert [record.is_async for record in (sync, later)] == [False, True]
    assert sync.blocked_ns >= 50e6
    assert later.blocked_ns >= 50e6
    assert later.return_ns - later.issue_ns < later.blocked_ns
    assert recorder.in_flight.unmatched_waits == 0
    assert recorder.failures == {}


def test_its_bytes_are_those_of_the_whole_array(install: Install) -> None:
    recorder = install(CompleteHook, DeepSpeedCommHook)
    Site().reduce_scatter_tensor(output=torch.zeros(4), tensor=torch.zeros(32))
    assert [record.nbytes for record in collectives(recorder)] == [128]


def test_what_it_leaves_to_torch_is_on_the_wire_once(install: Install) -> None:
    recorder = install(CompleteHook, DeepSpeedCommHook)
    Site().broadcast(torch.zeros(4))
    [record] = collectives(recorder)
    assert (record.op, record.on_wire, record.requested) == ("broadcast", True, "broadcast")


def test_a_backend_that_derives_from_nothing_is_found_at_a_step(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    import deepspeed.comm.comm as comm

    class Duck:
        def barrier(self) -> None:
            pass

    recorder = install(CompleteHook, DeepSpeedCommHook)
    monkeypatch.setattr(comm, "cdb", Duck())
    recorder.progress.end_step("user")
    comm.cdb.barrier()
    assert [(record.op, record.on_wire) for record in collectives(recorder)] == [("barrier", False)]


def test_everything_is_put_back(group: None) -> None:
    before = dict(vars(Site))
    hook = DeepSpeedCommHook(Recorder(lambda: True))
    hook.recorder.arm()
    hook.install("deepspeed.comm.torch")
    assert vars(Site)["all_reduce"] is not before["all_reduce"]
    hook.uninstall()
    assert all(vars(Site)[name] is value for name, value in before.items())
    assert "__init_subclass__" not in vars(Backend)
