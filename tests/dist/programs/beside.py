"""Trains beside torch.profiler and DeepSpeed's flops profiler, without dsprof and with it; infers.

OUT/profiled.rankN.json: {"bare", "auto", "dispatcher", "native"} -> {event of the profiler: calls}.
OUT/flops.rankN.json: the same ways -> what the flops profiler printed, times left out.
The trace of a way to intercept is in OUT/<way>, that of inference in OUT/inference.
"""

import gc
import json
import re
import sys
from collections import Counter
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

import dsprof
from tests.dist.leaving import leave_group
from tests.dist.programs import small_zero

PRINTED = re.compile(r"^(params|fwd MACs|fwd flops|world size|.*batch size).*$", re.MULTILINE)


def trained_under_torch_profiler() -> dict[str, int]:
    engine = small_zero.build(stage=2)
    try:
        gc.collect()  # DeepSpeed's engines destroy themselves once more when they are collected
        gc.disable()
        with torch.profiler.profile() as profiler:
            for _ in small_zero.losses(engine, 2):
                pass
    finally:
        gc.enable()
        engine.destroy()
    return Counter(event.name for event in profiler.events())


def trained_under_flops_profiler(printed: Path) -> list[str]:
    profiler = {"enabled": True, "profile_step": 2, "output_file": str(printed)}
    torch.manual_seed(0)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
        "flops_profiler": profiler,
    }
    layers = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
    engine, *_ = deepspeed.initialize(model=layers, config=config)
    try:
        for _ in range(3):
            engine.backward(engine(torch.ones(4, 64)).square().mean())
            engine.step()
    finally:
        engine.destroy()
    text = printed.read_text() if printed.exists() else ""  # rank 0 prints
    return [match.group() for match in PRINTED.finditer(text)]


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        dist.all_reduce(x)  # as a tensor-parallel layer would
        return x

    def generate(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self(x)
        return x


def infer() -> None:
    with torch.no_grad():
        Generator()(torch.ones(2, 32))
    with torch.inference_mode():
        Generator()(torch.ones(2, 32))
    deepspeed.init_inference(Generator(), dtype=torch.float32).generate(torch.ones(2, 32))


def main() -> None:
    out = Path(sys.argv[1])
    deepspeed.init_distributed(dist_backend="gloo")
    rank = dist.get_rank()
    small_zero.build(stage=2).destroy()  # what happens only once
    profiled, flops = {}, {}
    for way in ("bare", "auto", "dispatcher", "native"):
        for what in ("profiled", "flops"):
            if way != "bare":
                dsprof.enable(out=str(out / way / what), interception=way)
            if what == "profiled":
                profiled[way] = trained_under_torch_profiler()
            else:
                flops[way] = trained_under_flops_profiler(out / f"{way}.{rank}.txt")
            dsprof.disable()
    dsprof.enable(out=str(out / "inference"))
    infer()
    dsprof.disable()
    (out / f"profiled.rank{rank}.json").write_text(json.dumps(profiled))
    (out / f"flops.rank{rank}.json").write_text(json.dumps(flops))
    leave_group()


if __name__ == "__main__":
    main()
