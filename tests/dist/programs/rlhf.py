"""The engines of RLHF: actor and critic train in turn, a reference model only looks on.

The actor's stage 3 also generates with its bare module. Argument: the folder for traces.
"""

import sys

import deepspeed
import torch
import torch.distributed as dist

import dsprof
from tests.dist.leaving import leave_group

ROUNDS = 6
WIDTH = 64


def engine(stage: int, accumulation: int = 1, *, trains: bool = True) -> deepspeed.DeepSpeedEngine:
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulation,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    if not trains:
        made, *_ = deepspeed.initialize(model=model, config=config)
        return made
    config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
    made, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    return made


def update(engine: deepspeed.DeepSpeedEngine, experience: torch.Tensor) -> None:
    engine.backward(engine(experience).float().pow(2).mean())
    engine.step()


def main() -> None:
    dsprof.enable(out=sys.argv[1])
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    actor, critic, reference = engine(3), engine(2, 2), engine(3, trains=False)
    for engine_ in (actor, critic):
        engine_.train()
    reference.eval()
    for _ in range(ROUNDS):
        experience = torch.randn(2, WIDTH, dtype=torch.bfloat16)
        with torch.no_grad():
            actor.eval()
            for _ in range(3):
                experience = actor.module(experience)
            actor.train()
            reference(experience)
        update(actor, experience)
        update(critic, experience)
    for one in (actor, critic, reference):
        one.destroy()
    dist.barrier()
    leave_group()


if __name__ == "__main__":
    main()
