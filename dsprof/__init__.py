"""dsprof: what a distributed training run did on the wire, what it cost, and what to change.

    import dsprof
    dsprof.enable()        # or DSPROF=1 in the environment and no change to the script

and afterwards `dsprof report dsprof-out`. This module imports nothing of dsprof until it is used:
`import torch` loads it when DSPROF is set, and must not fail if dsprof is broken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsprof._version import __version__

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from typing import Literal, NoReturn

    from dsprof.api.loaded_run import LoadedRun
    from dsprof.api.recording import Recording
    from dsprof.recording.annotation import Annotation

__all__ = ["__version__", "annotate", "disable", "enable", "load", "metrics", "record", "step"]


_NOT_GIVEN: Any = ...
"""An option that is left out leaves its value to DSPROF_* and the YAML file."""


def enable(
    *,
    config: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] = _NOT_GIVEN,
    interception: Literal["auto", "dispatcher", "native", "process_group"] = _NOT_GIVEN,
    mode: Literal["window", "always"] = _NOT_GIVEN,
    start_step: int = _NOT_GIVEN,
    steps: int | None = _NOT_GIVEN,
    every: int = _NOT_GIVEN,
    budget_mb: int = _NOT_GIVEN,
    capture_signal: Literal["none", "SIGUSR1", "SIGUSR2"] = _NOT_GIVEN,
    capture_profiler: bool = _NOT_GIVEN,
    hooks: Sequence[str] = _NOT_GIVEN,
    hang_after: float | Literal["auto"] = _NOT_GIVEN,
    on_hang: Literal["report", "dump", "abort"] = _NOT_GIVEN,
    anonymize: bool = _NOT_GIVEN,
    metrics_port: int | None = _NOT_GIVEN,
    alerts: str | os.PathLike[str] | None = _NOT_GIVEN,
    **unknown: NoReturn,
) -> None:
    """Record this process: from now on, or from the first collective or optimizer step on.

    It starts at once if a process group is initialized. May be called before or after torch,
    deepspeed and engines exist. If a recording is already on, as with DSPROF=1, the call changes
    nothing, and a line names the options that are ignored.

    Args:
        config: YAML file with settings.
        out: folder for the trace files.
        interception: where collectives are intercepted.
        mode: "always" records the whole run within `budget_mb`.
        start_step: first optimizer step recorded in detail.
        steps: number of steps recorded from there on; None: all.
        every: record only each n-th of these steps in detail.
        budget_mb: megabytes of trace that a rank may write; beyond that only counters.
        capture_signal: with `mode="always"`, makes all ranks keep the next 32 steps in detail.
        capture_profiler: also run torch.profiler in steps that were asked for.
        hooks: hooks of plugins to enable, by name.
        hang_after: seconds without progress after which a rank suspects a hang; 0: never.
        on_hang: what to do when a run is stuck.
        anonymize: replace the names of hosts, users and folders.
        metrics_port: port of 127.0.0.1 at which a process of local rank 0 answers Prometheus.
        alerts: YAML file that says where a process of rank 0 sends findings.
        unknown: refused, with the option that was probably meant.

    Raises:
        ConfigError: an option, a DSPROF_* variable or the file is wrong.
    """
    given = _given(locals())  # first, while locals are the arguments
    import os

    from dsprof.config import load_config
    from dsprof.recording import session

    session.start(load_config(os.environ, given), given)


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    options = arguments | arguments["unknown"]
    del options["unknown"]
    return {name: value for name, value in options.items() if value is not _NOT_GIVEN}


def record(
    *,
    config: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] = _NOT_GIVEN,
    interception: Literal["auto", "dispatcher", "native", "process_group"] = _NOT_GIVEN,
    mode: Literal["window", "always"] = _NOT_GIVEN,
    start_step: int = _NOT_GIVEN,
    steps: int | None = _NOT_GIVEN,
    every: int = _NOT_GIVEN,
    budget_mb: int = _NOT_GIVEN,
    capture_signal: Literal["none", "SIGUSR1", "SIGUSR2"] = _NOT_GIVEN,
    capture_profiler: bool = _NOT_GIVEN,
    hooks: Sequence[str] = _NOT_GIVEN,
    hang_after: float | Literal["auto"] = _NOT_GIVEN,
    on_hang: Literal["report", "dump", "abort"] = _NOT_GIVEN,
    anonymize: bool = _NOT_GIVEN,
    metrics_port: int | None = _NOT_GIVEN,
    alerts: str | os.PathLike[str] | None = _NOT_GIVEN,
    **unknown: NoReturn,
) -> Recording:
    """Record inside `with`; the options are those of `enable`.

    A recording that is already on keeps its options and continues afterwards.

        with dsprof.record(steps=20) as run:
            train()
        run.report()

    Raises:
        ConfigError: an option, a DSPROF_* variable or the file is wrong.
    """
    given = _given(locals())
    import os

    from dsprof.api.recording import Recording
    from dsprof.config import load_config

    return Recording(load_config(os.environ, given), given)


def disable() -> None:
    """Stop recording, restore every patched attribute, and finish the trace file."""
    from dsprof.recording import session

    session.stop()


def step() -> None:
    """Mark the end of a training step in a loop that no library marks.

    From the first call on, only these calls count as steps. Recording starts with the first
    collective or optimizer step. If a process group is initialized before that, the first call of
    this function starts it, and the next step is the first one recorded.
    """
    from dsprof.recording import session

    on = session.current()
    if on is None:
        return
    if on.recorder.recording:
        on.recorder.progress.end_step("user")
    else:
        on.recorder.arm(at_collective=False)


def metrics() -> dict[str, float]:
    """Return figures of the last step of this rank, for any logger: `wandb.log(dsprof.metrics())`.

    Names begin with `dsprof/`. The figures are one or two steps old: a step is summed up when its
    collectives have ended. Returns {} until then, while nothing is recorded, and at the first call,
    which switches the summing on. The call is a lookup; the writer's thread adds up.
    """
    from dsprof.recording import session

    return session.metrics()


def annotate(name: str) -> Annotation:
    """Name a span of the program; usable with `with` and as a decorator.

    A decorated coroutine is timed until it returns, a generator each time that it runs, and an
    asynchronous generator not at all.
    """
    from dsprof.recording.annotation import Annotation

    return Annotation(name)


def load(path: str | os.PathLike[str], *, epoch: int | None = None) -> LoadedRun:
    """Read the run in a trace file or folder, of dsprof or of another tool; or at an address.

    It has `findings`, `steps`, `collectives`, `flushes`, `memory` and `environment`: typed rows,
    read when they are asked for, each with `to_pandas()` and `to_polars()`. `epoch` chooses a
    start of a job that restarted, counted from 1; None: the last.

    Raises:
        TraceError: there is no readable trace at `path`, or no such epoch.
    """
    from dsprof.api.loaded_run import load_run
    from dsprof.trace.trace_files import given_path

    return load_run([given_path(path)], epoch)


def __dir__() -> list[str]:
    return __all__
