"""DeepSpeed configurations as they should not be."""

from collections.abc import Mapping
from typing import Any

import deepspeed
import torch

from examples.deepspeed_zero import fast_dtype
from examples.wrong.training import Patch, Step, batch, merged, network

_CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "SGD", "params": {"lr": 1e-6}},
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 1},
}


def _trained(
    layers: int,
    width: int,
    config: Patch,
    patch: Patch | None,
    rows: int = 2,
    **milliseconds: float,
) -> Step:
    model = network(layers, width, **milliseconds)
    usual = _CONFIG | {"bf16": {"enabled": fast_dtype() is torch.bfloat16}}
    engine, *_ = deepspeed.initialize(model=model, config=merged(merged(usual, config), patch))
    x = batch(width, next(model.parameters()).dtype, rows)

    def step() -> None:
        for _ in range(engine.gradient_accumulation_steps()):
            engine.backward(engine(x).sum())
            engine.step()

    return step


def _zero(stage: int, **keys: Any) -> Mapping[str, Any]:
    return {"zero_optimization": {"stage": stage, **keys}}


def small_reduce_buckets(patch: Patch | None) -> Step:
    """Give ZeRO a bucket in which no two gradients fit."""
    return _trained(32, 48, _zero(1, reduce_bucket_size=2000), patch)


def fp32_gradients(patch: Patch | None) -> Step:
    """Send the gradients of a bf16 model as fp32."""
    config = {"bf16": {"enabled": True}, "communication_data_type": "fp32"}
    return _trained(4, 512, config, patch)


def needless_gathers(patch: Patch | None) -> Step:
    """Let ZeRO-3 drop parameters after forward, though memory would hold them for backward."""
    keys = {
        "stage3_param_persistence_threshold": 0,
        "stage3_max_live_parameters": 0,  # what is gathered ahead is not released in between
        "stage3_max_reuse_distance": 0,
    }
    return _trained(3, 1024, _zero(3, **keys), patch)


def no_prefetch(patch: Patch | None) -> Step:
    """Let ZeRO-3 gather each layer only when it is needed."""
    keys = {
        "stage3_prefetch_bucket_size": 0,
        "stage3_param_persistence_threshold": 0,
        "stage3_max_reuse_distance": 0,
    }
    return _trained(6, 512, _zero(3, **keys), patch, forward_ms=6, backward_ms=12)


def reference_products(patch: Patch | None) -> Step:
    """Train in bf16 on a CPU that torch multiplies it on in its reference path."""
    return _trained(4, 256, {"bf16": {"enabled": True}}, patch, rows=128)
