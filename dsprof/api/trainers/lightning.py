"""A callback for Lightning's Trainer."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger

import dsprof
from dsprof.api.trainers import report


class Figures(Callback):
    """Logs `dsprof/*` as often as the Trainer logs, and the report once training is over."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Let the writer add up from now on."""
        dsprof.metrics()

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        """Log the figures."""
        every = max(trainer.log_every_n_steps, 1)
        if trainer.is_global_zero and trainer.global_step % every == 0:
            for logger in trainer.loggers:
                logger.log_metrics(dsprof.metrics(), step=trainer.global_step)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Send the report."""
        if trainer.is_global_zero:
            report.send_report_beside(_sinks(trainer))


def _sinks(trainer: Trainer) -> dict[str, report.Sink]:
    sinks = {}
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            sinks[report.WANDB] = report.to_wandb(logger.experiment)
        elif isinstance(logger, MLFlowLogger):
            sinks[report.MLFLOW] = report.to_mlflow(logger.experiment, logger.run_id)
        elif isinstance(logger, TensorBoardLogger):
            sinks[report.TENSORBOARD] = report.to_tensorboard(logger.log_dir)
    return sinks
