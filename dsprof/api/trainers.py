"""Figures of dsprof in the trackers of a trainer: one line in the training program.

Steps are never marked here: dsprof sees them below the trainer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dsprof

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback
    from transformers import Trainer


def log_to_trackers(trainer: Trainer) -> None:
    """Let a Hugging Face Trainer log `dsprof/*` to the trackers that it reports to.

    Call it after the Trainer is made and before `train`. Each log of the Trainer
    then has the figures of rank 0's last step.
    """
    from transformers import TrainerCallback

    class _Figures(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            dsprof.metrics()

        def on_log(
            self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any
        ) -> None:
            if state.is_world_process_zero:
                logs.update(dsprof.metrics())

    # Before the trackers, which are callbacks as well and are given the same `logs`.
    trainer.callback_handler.callbacks.insert(0, _Figures())


def lightning_callback() -> Callback:
    """Return a callback with which Lightning logs `dsprof/*`: `Trainer(callbacks=[...])`."""
    from lightning.pytorch.callbacks import Callback

    class _Figures(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            dsprof.metrics()

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            every = max(trainer.log_every_n_steps, 1)
            if trainer.is_global_zero and trainer.global_step % every == 0:
                for logger in trainer.loggers:
                    logger.log_metrics(dsprof.metrics(), step=trainer.global_step)

    return _Figures()
