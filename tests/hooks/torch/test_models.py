"""hooks.models: what is read of the first forwards of a model, and what is kept of it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from dsprof.hooks.torch.models import Models
from dsprof.recording.recorder.recorder import Recorder


@pytest.fixture
def recorder():
    recorder = Recorder(lambda: True)
    recorder.outbox.define = seen.append
    return recorder


seen: list = []


@pytest.fixture(autouse=True)
def nothing_seen():
    seen.clear()


def model() -> nn.Module:
    made = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    made[0].weight.requires_grad_(False)
    return made


def batch(rows: int, columns: int) -> torch.Tensor:
    return torch.zeros(rows, columns, dtype=torch.int64)


def test_parameters_dtype_and_tokens_of_the_first_forwards(recorder):
    one, models = model(), recorder.shared(Models)
    for columns in (8, 8, 4, 4, 100):
        given = {"mask": torch.ones(2, columns), "input_ids": batch(2, columns)}
        models.see("DDP", one, (), given)
    first, last = seen
    assert (last.library, last.parameters, last.trained) == ("DDP", 80, 40)
    assert (last.dtype, last.autocast, last.has_experts) == ("float32", "", False)
    assert (first.tokens, last.tokens) == ([16], [16, 16, 8, 8])


@pytest.mark.parametrize("given", [torch.ones(2, 8), torch.zeros(2, 8, 4, dtype=torch.int64), None])
def test_inputs_that_are_no_token_numbers_are_not_guessed(recorder, given):
    recorder.shared(Models).see("DDP", model(), (given,), {})
    assert seen[0].tokens == [0]


@pytest.mark.parametrize(
    ("features", "numbers", "tokens"),
    [
        ((30, 16), (2, 90), 0),  # the nodes of a graph, and its edges
        ((2, 80, 3000), (2, 12), 0),  # speech, and its labels
        ((2, 12, 64), (2, 12), 24),  # embedded tokens, and their labels
    ],
)
def test_numbers_behind_features_are_tokens_only_of_the_same_shape(
    recorder, features, numbers, tokens
):
    recorder.shared(Models).see("DDP", model(), (torch.ones(features), batch(*numbers)), {})
    assert seen[0].tokens == [tokens]


def test_an_evaluation_is_not_looked_at(recorder):
    recorder.shared(Models).see("DDP", model().eval(), (batch(2, 8),), {})
    assert seen == []


def test_autocast_around_forward(recorder):
    with torch.autocast("cpu", torch.bfloat16):
        recorder.shared(Models).see("DDP", model(), (batch(2, 8),), {})
    assert seen[0].autocast == "bfloat16"


def test_zero_3_and_experts(recorder):
    made = nn.ModuleDict({"experts": nn.Linear(4, 4, bias=False)})
    made["experts"].weight.ds_numel = 1000
    recorder.shared(Models).see("DeepSpeed", made, (), {})
    assert (seen[0].parameters, seen[0].has_experts) == (1000, True)


def test_what_fsdp1_shows_is_a_share_of_the_parameters(recorder):
    recorder.shared(Models).see("FSDP1", model(), (), {})
    assert (seen[0].parameters, seen[0].trained, seen[0].dtype) == (0, 0, "float32")


def test_a_model_that_cannot_be_described_is_a_failure_of_its_own(recorder):
    failed = []
    recorder.fail = lambda hook, error: failed.append(hook)
    for _ in range(2):
        recorder.shared(Models).see("DDP", nn.LazyLinear(4), (batch(1, 1),), {})
    assert (failed, seen) == (["models"], [])


def test_models_and_inputs_are_not_kept(recorder):
    one, given = model(), batch(2, 8)
    refs = weakref.ref(one), weakref.ref(given)
    recorder.shared(Models).see("DDP", one, (given,), {})
    del one, given
    gc.collect()
    assert [ref() for ref in refs] == [None, None]
