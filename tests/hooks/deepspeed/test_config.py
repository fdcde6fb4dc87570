from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from types import SimpleNamespace
from typing import Any

import msgspec
import pydantic.v1
import torch
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.config_utils import pp_int

from dsprof.hooks.deepspeed.config import describe
from dsprof.trace.schema import ParameterLayout


class Group:
    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def size(self) -> int:
        return self._ranks


def engine(optimizer: Any, *parameters: Any, **fields: Any) -> Any:
    module = SimpleNamespace(parameters=lambda: iter(parameters))
    return SimpleNamespace(module=module, optimizer=optimizer, **fields)


def sharded(elements: int, *, persists: bool = False, learns: bool = True) -> Any:
    """A parameter at stage 3, whose shares of 4 ranks are filled up."""
    return SimpleNamespace(
        requires_grad=learns,
        dtype=torch.bfloat16,
        ds_numel=elements,
        ds_persist=persists,
        numel=lambda: 0,
        aligned_size=lambda: -(-elements // 4) * 4,
    )


def test_flat_buffers_that_ranks_share_are_laid_out() -> None:
    buffers = [torch.empty(12), torch.empty(8)]
    optimizer = SimpleNamespace(
        bit16_groups_flat=buffers, real_dp_process_group=[Group(2), Group(1)]
    )
    described = describe(engine(optimizer, torch.nn.Parameter(torch.empty(20))), 0)
    assert described.layout == ParameterLayout(flat=(12,))
    assert (described.parameters, described.parameter_dtype) == (20, "float32")


def test_older_optimizers_need_not_tell_their_groups() -> None:
    optimizer = SimpleNamespace(bf16_groups_flat=[torch.empty(12)])
    assert describe(engine(optimizer), 0).layout.flat == (12,)
    assert describe(engine(None), 0).layout == ParameterLayout()


def test_parameters_of_stage_3_count_with_their_padding() -> None:
    parameters = sharded(5), sharded(7, persists=True), sharded(9, learns=False)
    layout = describe(engine(None, *parameters), 0).layout
    assert layout == ParameterLayout(padded=16, gathered=20, persistent=8, persistent_parameters=1)


def test_the_format_of_gradients_is_that_of_the_engine() -> None:
    described = describe(engine(None, communication_data_type=torch.float32), 0)
    assert described.communication_dtype == "float32"
    assert describe(engine(None), 0).communication_dtype == ""


class Block(torch.nn.Module):
    """A mixture of two experts and one that all use."""

    def __init__(self, experts: torch.nn.Module) -> None:
        super().__init__()
        self.experts = experts
        self.shared = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])


def test_lists_of_experts_outside_leaf_modules_are_counted() -> None:
    def experts(count: int) -> torch.nn.Module:
        return torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(count)])

    blocks = [Block(experts(2)), Block(experts(4)), Block(experts(1)), Block(torch.nn.Linear(2, 2))]
    model = torch.nn.Sequential(torch.nn.Sequential(*blocks))
    built = SimpleNamespace(module=model, optimizer=None)
    assert describe(built, 0).experts_apart == 2
    blocks[0]._z3_leaf = True
    assert describe(built, 0).experts_apart == 1
    model[0]._z3_leaf = True
    assert describe(built, 0).experts_apart == 0


def test_modules_that_many_share_are_looked_at_once() -> None:
    shared = torch.nn.Sequential(Block(torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.ReLU()])))
    for _ in range(40):  # 2 ** 40 ways lead to the innermost
        shared = torch.nn.Sequential(OrderedDict(one=shared, other=torch.nn.Sequential(shared)))
    shared.register_module("itself", torch.nn.Sequential(shared))
    assert describe(SimpleNamespace(module=shared, optimizer=None), 0).experts_apart == 1


class Device(str, Enum):
    cpu = "cpu"


class Offload(pydantic.v1.BaseModel):
    device: Device = Device.cpu


class ZeroBefore015(pydantic.v1.BaseModel):
    """The section before DeepSpeed 0.15: of pydantic's first version, keys as users spell them."""

    stage: int = 3
    prefetch: int = pydantic.v1.Field(pp_int(5), alias="stage3_prefetch_bucket_size")
    offload_param: Offload = Offload()


def test_settings_are_read_of_either_version_of_pydantic() -> None:
    config = SimpleNamespace(zero_config=ZeroBefore015())
    zero = describe(engine(None, _config=config), 0).effective["zero_optimization"]
    assert msgspec.json.decode(msgspec.json.encode(zero)) == {
        "stage": 3,
        "stage3_prefetch_bucket_size": 5,
        "offload_param": {"device": "cpu"},
    }


def test_sections_that_are_in_force_have_the_keys_that_users_write() -> None:
    written = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "betas": [0.9, 0.95]}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3}},
        "zero_optimization": {"stage": 2},
        "activation_checkpointing": {"partition_activations": True},
        "flops_profiler": {"enabled": False, "profile_step": 7},
        "data_types": {"grad_accum_dtype": "fp32"},
    }
    found = describe(engine(None, _config=DeepSpeedConfig(dict(written))), 0).effective
    assert msgspec.json.decode(msgspec.json.encode(found)) == found
    assert found["train_batch_size"] == 8
    assert (found["bf16"]["enabled"], found["fp16"]["enabled"]) == (True, False)
    assert found["optimizer"] == {"type": "adamw", "params": written["optimizer"]["params"]}
    assert found["flops_profiler"]["profile_step"] == 7
    assert found["activation_checkpointing"]["cpu_checkpointing"] is False
    for key in ("scheduler", "data_types"):
        assert found[key] == written[key]


def test_releases_without_sections_for_types_tell_which_is_on() -> None:
    config = SimpleNamespace(bfloat16_enabled=True, fp16_enabled=False)
    found = describe(engine(None, _config=config), 0).effective
    assert found == {"bf16": {"enabled": True}, "fp16": {"enabled": False}}
