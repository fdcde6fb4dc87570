"""Where the trackers of an Accelerator are."""

from __future__ import annotations

from accelerate import Accelerator
from accelerate.tracking import MLflowTracker, TensorBoardTracker, WandBTracker

from dsprof.api.trainers import report


def sinks(accelerator: Accelerator) -> dict[str, report.Sink]:
    """Return how to log a report to each; none where this is not the main process."""
    found: dict[str, report.Sink] = {}
    if not accelerator.is_main_process:
        return found
    for tracker in accelerator.trackers:
        if isinstance(tracker, WandBTracker):
            found[report.WANDB] = report.to_wandb(tracker.run)
        elif isinstance(tracker, MLflowTracker):
            import mlflow

            client, run = mlflow.MlflowClient(), tracker.active_run
            found[report.MLFLOW] = report.to_mlflow(client, run.info.run_id)
        elif isinstance(tracker, TensorBoardTracker):
            found[report.TENSORBOARD] = report.to_tensorboard(tracker.writer.log_dir)
    return found
