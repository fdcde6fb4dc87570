"""ZeRO-3 on four ranks of which two each share the parameters: the other half is tensor parallel.

Argument: the folder for traces.
"""

import sys

import deepspeed
import torch
import torch.distributed as dist

import dsprof
from tests.dist.leaving import leave_group

STEPS = 3
WIDTH = 32
CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {
        "stage": 3,
        "stage3_param_persistence_threshold": 0,
        "stage3_max_live_parameters": 0,
        "stage3_max_reuse_distance": 0,
        "stage3_prefetch_bucket_size": 0,
    },
}


class Pairs:
    """What Megatron's parallel state tells DeepSpeed: ranks 0 and 2 share data, as do 1 and 3."""

    def __init__(self) -> None:
        data = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
        model = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
        rank = dist.get_rank()
        self._data, self._model = data[rank % 2], model[rank // 2]

    def get_data_parallel_group(self) -> dist.ProcessGroup:
        return self._data

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        return self._model

    def get_data_parallel_rank(self) -> int:
        return dist.get_rank(self._data)

    def get_model_parallel_rank(self) -> int:
        return dist.get_rank(self._model)

    def get_data_parallel_world_size(self) -> int:
        return dist.get_world_size(self._data)

    def get_model_parallel_world_size(self) -> int:
        return dist.get_world_size(self._model)


def main() -> None:
    dsprof.enable(out=sys.argv[1])
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=CONFIG, mpu=Pairs()
    )
    for _ in range(STEPS):
        engine.backward(engine(torch.randn(2, WIDTH)).pow(2).mean())
        engine.step()
    engine.destroy()
    dist.barrier()
    leave_group()


if __name__ == "__main__":
    main()
