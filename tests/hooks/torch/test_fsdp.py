"""hooks.fsdp: which modules are models, and where the forwards of a model begin and end.

tests/dist/test_meaning.py compares fetches and flushes with torch's own ranges.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.utils.checkpoint import checkpoint

from dsprof.hooks.torch.ddp import DDPHook
from dsprof.hooks.torch.fsdp import FSDPHook
from dsprof.hooks.wire.process_group import ProcessGroupHook
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Fetch, Flush, Model, Phase
from tests.handed_over import handed_over

Install = Callable[..., Recorder]

WIDTH = 8
OF_LINEAR = WIDTH * WIDTH + WIDTH


class Block(nn.Module):
    """Runs its layers in turn, and `began` before the first of them the first time."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers or [nn.Linear(WIDTH, WIDTH)])
        self.began: Callable[[], object] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.began is not None:
            self.began, began = None, self.began
            began()
        for layer in self.layers:
            x = layer(x)
        return x


def fsdp2(module: nn.Module) -> nn.Module:
    return fully_shard(module)


def fsdp1(module: nn.Module) -> nn.Module:
    return FullyShardedDataParallel(module, device_id=torch.device("cpu"))


WRAPS = pytest.mark.parametrize("wrap", [fsdp1, fsdp2])


def root(wrap: Callable[[nn.Module], nn.Module], *own: nn.Module) -> tuple[nn.Module, Block]:
    """Return a model of three wrapped blocks and `own` layers, and its first block."""
    blocks = [Block() for _ in range(3)]
    return wrap(Block(*own, *map(wrap, blocks))), blocks[0]


def train(*models: nn.Module, forwards: int = 2) -> None:
    for _ in range(forwards):
        for model in models:
            model(torch.ones(2, WIDTH, requires_grad=True)).sum().backward()


def models(recorder: Recorder) -> dict[int, Model]:
    return {d.model: d for d in recorder.outbox.definitions if isinstance(d, Model)}


def phases(recorder: Recorder) -> list[str]:
    return [record.name for record in handed_over(recorder, Phase)]


def begun_within(model: nn.Module, block: Block, install: Install) -> Recorder:
    """Train a model whose recording begins in its first block, as with its first all-gather."""
    made: list[Recorder] = []
    block.began = lambda: made.append(install(FSDPHook))
    train(model)
    return made[0]


@pytest.mark.parametrize("own", [(), (nn.Linear(WIDTH, WIDTH),)], ids=["bare", "with its own"])
def test_blocks_run_before_recording_knew_the_root_are_no_models(install: Install, own) -> None:
    model, first = root(fsdp2, *own)
    recorder = begun_within(model, first, install)
    (found,) = models(recorder).values()
    assert (found.library, found.parameters) == ("FSDP2", (3 + len(own)) * OF_LINEAR)


def test_nested_units_are_no_models_either(install: Install) -> None:
    inner, first = root(fsdp2)
    model = fsdp2(Block(inner, fsdp2(Block(fsdp2(Block())))))
    recorder = begun_within(model, first, install)
    assert [found.parameters for found in models(recorder).values()] == [4 * OF_LINEAR]


def test_units_of_fsdp1_run_before_recording_knew_the_root_are_no_models(install: Install) -> None:
    model, first = root(fsdp1)
    assert len(models(begun_within(model, first, install))) == 1


def test_a_forward_in_which_recording_begins_is_one_phase_to_its_end(install: Install) -> None:
    model, first = root(fsdp2)
    assert phases(begun_within(model, first, install)) == ["forward"] * 2


def test_gradients_of_frozen_parameters_are_not_of_a_reduction(install: Install) -> None:
    """As with adapters beside a frozen model, whose units are gathered whole."""
    model, first = root(fsdp2)
    first.layers[0].weight.requires_grad_(False)
    recorder = install(FSDPHook, ProcessGroupHook)
    train(model)
    records = handed_over(recorder)
    reduced = {(one.elements, one.parameters) for one in records if isinstance(one, Flush)}
    assert reduced == {(WIDTH, 1), (OF_LINEAR, 2)}
    assert {one.elements for one in records if isinstance(one, Fetch)} == {OF_LINEAR}


def test_what_stays_gathered_is_fetched_once(install: Install) -> None:
    model = fully_shard(Block(), reshard_after_forward=False)
    recorder = install(FSDPHook, ProcessGroupHook)
    train(model, forwards=1)
    fetches = [one.kind for one in handed_over(recorder) if isinstance(one, Fetch)]
    assert fetches == ["fetch", "release"]


@WRAPS
def test_two_models_are_two(install: Install, wrap) -> None:
    recorder = install(FSDPHook)
    train(root(wrap)[0], root(wrap, nn.Linear(WIDTH, WIDTH))[0])
    assert len(models(recorder)) == 2


def test_a_model_of_ddp_beside_one_of_fsdp_is_its_own(install: Install) -> None:
    recorder = install(FSDPHook, DDPHook)
    train(root(fsdp2)[0])
    nn.parallel.DistributedDataParallel(Block())(torch.ones(2, WIDTH))
    assert [found.library for found in models(recorder).values()] == ["FSDP2", "DDP"]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_block_that_is_computed_again_in_backward_is_no_model(
    install: Install, use_reentrant: bool
) -> None:
    model, _ = root(fsdp2)
    for block in model.layers:
        plain = block.forward
        block.forward = lambda x, plain=plain: checkpoint(plain, x, use_reentrant=use_reentrant)
    recorder = install(FSDPHook)
    train(model)
    assert [found.parameters for found in models(recorder).values()] == [3 * OF_LINEAR]


def test_a_forward_that_raised_does_not_hide_the_next(install: Install) -> None:
    model, first = root(fsdp2)
    first.began = lambda: torch.ones(2) @ torch.ones(3)
    recorder = install(FSDPHook)
    with pytest.raises(RuntimeError):
        train(model)
    recorder.outbox.definitions.clear()
    train(model, forwards=4)
    assert len(models(recorder)[0].tokens) == 4
