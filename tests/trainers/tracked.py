"""Trains with trainers that report to trackers; dsprof's figures and report are among theirs."""

import os
import sys
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import dsprof
from dsprof.api.trainers import lightning_callback, log_report, log_to_trackers

STEPS = 24


class Squares(Dataset):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        time.sleep(0.03)  # the writer looks twice a second
        tokens = (index + torch.arange(16) ** 2) % 64
        return {"input_ids": tokens, "labels": tokens}


def hugging_face(out: Path) -> None:
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(out / "tensorboard")
    sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    arguments = TrainingArguments(
        output_dir=str(out / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        logging_steps=3,
        save_strategy="no",
        report_to=["tensorboard", "mlflow", "wandb"],
        use_cpu=True,
    )
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    trainer = Trainer(model=model, args=arguments, train_dataset=Squares())
    log_to_trackers(trainer)
    trainer.train()


def lightning(out: Path) -> None:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.loggers import (
        CSVLogger,
        MLFlowLogger,
        TensorBoardLogger,
        WandbLogger,
    )

    class Line(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch: Tensor, _: int) -> Tensor:
            time.sleep(0.1)
            return self.layer(batch).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=[
            CSVLogger(out / "lightning"),
            TensorBoardLogger(out / "tensorboard", name=""),
            MLFlowLogger(tracking_uri=os.environ["MLFLOW_TRACKING_URI"]),
            WandbLogger(save_dir=out),
        ],
        log_every_n_steps=3,
        callbacks=[lightning_callback()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Line(), torch.utils.data.DataLoader(torch.randn(400, 8), batch_size=4))


def accelerate(out: Path) -> None:
    from accelerate import Accelerator

    trackers = ["tensorboard", "mlflow", "wandb"]
    accelerator = Accelerator(cpu=True, log_with=trackers, project_dir=out / "tensorboard")
    accelerator.init_trackers("training", init_kwargs={"wandb": {"dir": str(out)}})
    layer = torch.nn.Linear(8, 1)
    model, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.01))
    for step in range(STEPS):
        time.sleep(0.1)
        accelerator.backward(model(torch.ones(4, 8)).sum())
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log(dsprof.metrics(), step=step)
    log_report(accelerator)
    accelerator.end_training()


CASES = {"hugging_face": hugging_face, "lightning": lightning, "accelerate": accelerate}


def main() -> None:
    out = Path(sys.argv[1])
    os.environ |= {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(out),
        "WANDB_SILENT": "true",
        "WANDB_DATA_DIR": str(out),
    }
    dsprof.enable(out=out / "trace")
    CASES[sys.argv[2]](out)
    if dist.is_initialized():  # Accelerate leaves the group itself
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
