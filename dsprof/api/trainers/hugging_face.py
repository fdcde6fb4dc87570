"""A callback for Hugging Face's Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import MLflowCallback, TensorBoardCallback, WandbCallback

import dsprof
from dsprof.api.trainers import report


class Figures(TrainerCallback):
    """Adds `dsprof/*` to what is logged, and sends the report once training is over."""

    def __init__(self, callbacks: Sequence[TrainerCallback]) -> None:
        self._callbacks = callbacks

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Let the writer add up from now on."""
        dsprof.metrics()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        """Add the figures."""
        if state.is_world_process_zero:
            logs.update(dsprof.metrics())

    def on_train_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Send the report, before the trackers close their runs."""
        if state.is_world_process_zero:
            report.send_report_beside(_sinks(self._callbacks))


def _sinks(callbacks: Sequence[TrainerCallback]) -> dict[str, report.Sink]:
    sinks = {}
    for callback in callbacks:
        if isinstance(callback, WandbCallback):
            import wandb

            if wandb.run is not None:
                sinks[report.WANDB] = report.to_wandb(wandb.run)
        elif isinstance(callback, MLflowCallback):
            import mlflow

            if (run := mlflow.active_run()) is not None:
                sinks[report.MLFLOW] = report.to_mlflow(mlflow.MlflowClient(), run.info.run_id)
        elif isinstance(callback, TensorBoardCallback) and callback.tb_writer is not None:
            sinks[report.TENSORBOARD] = report.to_tensorboard(callback.tb_writer.log_dir)
    return sinks
