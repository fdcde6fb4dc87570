"""Figures and the report of dsprof in the trackers of a trainer: one line in the training program.

Steps are never marked here: dsprof sees them below the trainer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelerate import Accelerator
    from lightning.pytorch.callbacks import Callback
    from transformers import Trainer


def log_to_trackers(trainer: Trainer) -> None:
    """Let a Hugging Face Trainer log `dsprof/*` to the trackers that it reports to.

    Call it after the Trainer is made and before `train`. Each log of the Trainer then has the
    figures of rank 0's last step. The report is logged after training.
    """
    from dsprof.api.trainers.hugging_face import Figures

    # Before the trackers, which are callbacks as well and are given the same `logs`.
    callbacks = trainer.callback_handler.callbacks
    callbacks.insert(0, Figures(callbacks))


def lightning_callback() -> Callback:
    """Return a callback with which Lightning logs `dsprof/*`: `Trainer(callbacks=[...])`.

    The report is logged after training.
    """
    from dsprof.api.trainers.lightning import Figures

    return Figures()


def log_report(accelerator: Accelerator) -> None:
    """Log the report to the trackers of an Accelerator, on its main process.

    Call it after training and before `end_training`. It returns once the report is logged.
    """
    from dsprof.api.trainers.accelerate import sinks
    from dsprof.api.trainers.report import send_report

    send_report(sinks(accelerator))
