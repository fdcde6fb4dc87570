"""Trains a small model under ZeRO with any DeepSpeed since 0.14; knows nothing of dsprof.

    zero_program.py OUT [--oracle]

Each rank writes OUT/rankN.json: {stage: {"losses", "start_ns", "end_ns", "ops", "requested"}}. With
`--oracle`, "ops" is what torch counts as {"phase/operation": calls}, and "requested" what
DeepSpeed's own logger counts.
"""

import argparse
import importlib
import json
import time
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.comm.comm import comms_logger

from tests.compat.zero_model import ACCUMULATION, CAPACITY, LAYERS, STAGES, STEPS, WIDTH
from tests.dist.leaving import leave_group
from tests.phase_oracle import counted, label_phases


def build(stage: int) -> deepspeed.DeepSpeedEngine:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": ACCUMULATION,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": CAPACITY,
            "stage3_param_persistence_threshold": WIDTH,  # biases are gathered after the step
        },
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def train(engine: deepspeed.DeepSpeedEngine) -> list[float]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(STEPS * ACCUMULATION):
        batch = torch.randn(2, WIDTH, generator=generator).to(engine.device, torch.bfloat16)
        loss = engine(batch).float().pow(2).mean()
        engine.backward(loss)
        with torch.no_grad():  # 0.18 gathers parameters with gradients on; torch 2.13 refuses that
            engine.step()
        losses.append(loss.item())
    return losses


def run(stage: int, raw: Path | None) -> dict[str, Any]:
    """Train under `stage`; count in `raw` if there is one."""
    engine = build(stage)
    result: dict[str, Any] = {"start_ns": time.perf_counter_ns()}
    if raw is None:
        result["losses"] = train(engine)
    else:
        comms_logger.comms_dict = {}
        deepspeed.comm.configure(enabled=True, prof_all=True, verbose=False)
        result["losses"], result["ops"] = counted(lambda: train(engine), raw)
        deepspeed.comm.configure(enabled=False)
        result["requested"] = {
            op: sum(entry[0] for entry in sizes.values())
            for op, sizes in comms_logger.comms_dict.items()
        }
    return {**result, "end_ns": time.perf_counter_ns()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--oracle", action="store_true")
    args = parser.parse_args()
    # A helper for all-reduces in shared memory; it takes minutes to compile, and is not used here.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    deepspeed.init_distributed(dist_backend="gloo")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.oracle:
        label_phases()
    rank, results = dist.get_rank(), {}
    for stage in STAGES:
        raw = args.out / f"stage{stage}.rank{rank}.execution.json"
        results[stage] = run(stage, raw if args.oracle else None)
    (args.out / f"rank{rank}.json").write_text(json.dumps(results))
    leave_group()


if __name__ == "__main__":
    main()
