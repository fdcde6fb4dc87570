"""Steps where no library marks them: torch's own hook behind every optimizer's step."""

from __future__ import annotations

from typing import Any

from dsprof.hooks.base import Hook


class OptimizerStepHook(Hook):
    """Counts an optimizer step as a training step, unless an engine or the user counts them."""

    name = "optimizer"

    def modules(self) -> tuple[str, ...]:
        return ("torch.optim.optimizer",)

    def install(self, module: str) -> None:
        """Register the hook that torch offers."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        recorder = self.recorder

        def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
            if recorder.recording and not self.broken:
                try:
                    recorder.end_step("optimizer")
                except Exception as error:
                    self.fail(error)

        self._handle = register_optimizer_step_post_hook(stepped)

    def uninstall(self) -> None:
        self._handle.remove()
