"""Logs the report to trackers; another process makes it from what is on disk after training."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from dsprof.environment.own_command import own_command
from dsprof.errors import DsprofError, argument
from dsprof.recording import session
from dsprof.recording.messages import say


class Report(NamedTuple):
    """The same in two forms."""

    page: Path
    text: str


Sink = Callable[[Report], None]
"""Logs the report to one tracker."""

_PATIENCE_S = 600.0
"""The process of training, with its GPUs, does not end before."""

WANDB, MLFLOW, TENSORBOARD = "Weights & Biases", "MLflow", "TensorBoard"


def to_wandb(run: Any) -> Sink:
    """Log the page to a run, which shows it as a panel and keeps it as an artifact."""

    def log(report: Report) -> None:
        import wandb

        page = str(report.page)
        run.log({"dsprof/report": wandb.Html(page, inject=False)})
        artifact = wandb.Artifact("dsprof-report", "report")
        artifact.add_file(page, "report.html")
        run.log_artifact(artifact)

    return log


def to_mlflow(client: Any, run_id: str) -> Sink:
    """Add the page to the artifacts of a run, which may have ended."""
    return lambda report: client.log_artifact(run_id, str(report.page), "dsprof")


def to_tensorboard(folder: str) -> Sink:
    """Log the text: TensorBoard shows no pages."""

    def log(report: Report) -> None:
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(folder) as writer:
            writer.add_text("dsprof/report", f"```\n{report.text}\n```")

    return log


def send_report_beside(sinks: Mapping[str, Sink]) -> None:
    """Send it from a thread, because other ranks may need this one; the process ends after it."""
    Thread(target=send_report, args=(sinks,), name="dsprof-report").start()


def send_report(sinks: Mapping[str, Sink]) -> None:
    """Report what is recorded so far, log it, and print what fails."""
    on = session.current()
    if not sinks or on is None or on.trace_file is None:
        return
    try:
        report = _make(on.trace_file.parent)
    except (OSError, DsprofError) as error:
        say(f"the report could not be made: {error}")
        return
    for tracker, send in sinks.items():
        try:
            send(report)
        except Exception as error:  # noqa: BLE001 - trackers raise what they like
            why = f"{type(error).__name__}: {error}"
            where = f"the report is in {report.page}"
            say(f"{where}, but could not be logged to {tracker}: {why}")


def _make(folder: Path) -> Report:
    page = folder / "report.html"
    command = own_command("dsprof.__main__", "report", str(folder), "-o", str(page))
    plain = {**os.environ, "NO_COLOR": "1"}
    try:
        done = subprocess.run(
            command, env=plain, capture_output=True, encoding="utf-8", timeout=_PATIENCE_S
        )
    except subprocess.TimeoutExpired:
        took = f"it was not done after {_PATIENCE_S:.0f} s"
        raise DsprofError(f"{took}; make it with: dsprof report {argument(folder)}") from None
    if done.returncode:
        said = done.stderr.strip().removeprefix("dsprof: ")
        raise DsprofError(said or "the process was killed")
    return Report(page, done.stdout)
