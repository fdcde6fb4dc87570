"""Requests to deepspeed.comm: seen as what was asked for, whatever comes of them on the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dsprof.hooks.deepspeed.comm import DeepSpeedCommHook
from dsprof.hooks.wire.interception import CompleteHook
from dsprof.recording.recorder.contexts import NOBODY
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Collective, Group, Site
from tests.handed_over import handed_over
from tests.hooks.described import group_of

pytestmark = pytest.mark.usefixtures("in_c_and_in_python")

Install = Callable[..., Recorder]


def requests(recorder: Recorder, **methods: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Wrap stand-ins for methods of TorchBackend; `backend` is their first argument."""
    hook = DeepSpeedCommHook(recorder)
    targets = {target.name: target for target in hook.targets}
    return {name: hook.wrap(targets[name], method) for name, method in methods.items()}


def collectives(recorder: Recorder) -> list[Collective]:
    return handed_over(recorder, Collective)


def test_a_collective_carries_what_was_requested(install: Install) -> None:
    recorder = install(CompleteHook)
    tensor = torch.zeros(4)
    ask = requests(recorder, reduce_scatter_tensor=lambda backend, t: dist.all_reduce(t))
    ask["reduce_scatter_tensor"](None, tensor)
    dist.all_reduce(tensor)
    first, second = collectives(recorder)
    assert (first.op, first.requested) == ("all_reduce", "reduce_scatter_tensor")
    assert first.request > 0
    assert (second.requested, second.request) == ("", 0)
    assert recorder.contexts.current() is NOBODY


def test_a_request_that_deepspeed_makes_for_itself_is_part_of_the_outer_one(
    install: Install,
) -> None:
    recorder = install(CompleteHook)
    inner = requests(recorder, all_gather=lambda backend, t: dist.all_reduce(t))["all_gather"]
    outer = requests(recorder, all_gather_object=lambda b, t: [inner(b, t), inner(b, t)])
    outer["all_gather_object"](None, torch.zeros(4))
    found = collectives(recorder)
    assert [record.requested for record in found] == ["all_gather_object"] * 2
    assert len({record.request for record in found}) == 1


def test_what_never_reaches_c10d_is_recorded_and_marked(install: Install) -> None:
    recorder = install(CompleteHook)
    pair = dist.new_group([0, 1])
    dist.all_reduce(torch.zeros(4), group=pair)
    ask = requests(recorder, inference_all_reduce=lambda backend, tensor, group=None: tensor)
    tensor = torch.zeros(8, dtype=torch.bfloat16)
    assert ask["inference_all_reduce"](None, tensor) is tensor
    assert recorder.failures == {}
    wired, unseen = collectives(recorder)
    assert (wired.on_wire, unseen.on_wire) == (True, False)
    assert (unseen.op, unseen.nbytes, unseen.elements, unseen.dtype) == (
        "inference_all_reduce",
        16,
        8,
        "bfloat16",
    )
    assert group_of(recorder, unseen).size == dist.get_world_size()
    for kind in (Group, Site):
        ids = [part.id for part in recorder.outbox.definitions if isinstance(part, kind)]
        assert len(set(ids)) == len(ids), "two hooks must not give one number twice"


def test_what_is_only_traced_is_no_communication_of_the_library(install: Install) -> None:
    recorder = install(CompleteHook)
    ask = requests(recorder, inference_all_reduce=lambda backend, tensor: tensor)
    ask["inference_all_reduce"](None, torch.zeros(4, device="meta"))
    assert collectives(recorder) == []


def test_what_a_broken_wire_hook_did_not_see_is_not_said_to_be_off_the_wire(
    install: Install,
) -> None:
    recorder = install(CompleteHook)
    recorder.fail("c10d", RuntimeError("an odd call"))
    ask = requests(recorder, inference_all_reduce=lambda backend, tensor: tensor)
    ask["inference_all_reduce"](None, torch.zeros(4))
    assert collectives(recorder) == []
