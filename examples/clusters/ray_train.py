"""Trains a small network with Ray Train on two workers, recorded.

pip install 'ray[train]'
python examples/clusters/ray_train.py
dsprof report dsprof-out
"""

from pathlib import Path

import ray
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

import dsprof

RECORDING = {"DSPROF": "1", "DSPROF_STEPS": "50", "DSPROF_OUT": str(Path("dsprof-out").resolve())}


def train() -> None:
    model = prepare_model(nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(30):
        loss = model(torch.randn(64, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dsprof.disable()  # finishes the trace: Ray kills its workers when they are done


if __name__ == "__main__":
    ray.init(runtime_env={"env_vars": RECORDING})
    TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2)).fit()
