"""dsprof: what a distributed training run did on the wire, what it cost, and what to change.

    import dsprof
    dsprof.enable()        # or DSPROF=1 in the environment and no change to the script

and afterwards `dsprof report dsprof-out`. This module imports nothing of dsprof until it is used:
`import torch` loads it when DSPROF is set, and must not fail whatever is wrong with us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsprof._version import __version__

if TYPE_CHECKING:
    import os
    from contextlib import AbstractContextManager

    from dsprof.analysis.summary import RunSummary

__all__ = ["__version__", "annotate", "disable", "enable", "load", "step"]


def enable(**options: Any) -> None:
    """Record this process, from now on if a process group is up, else from the first collective on.

    May be called before or after torch, deepspeed and engines exist; a second call does nothing.
    `options` are the fields of `dsprof.config.Config` and `config`, the path of a YAML file.

    Raises:
        ConfigError: an option, a DSPROF_* variable or the file is wrong.
    """
    import os

    from dsprof import session
    from dsprof.config import load_config

    session.start(load_config(os.environ, options))


def disable() -> None:
    """Stop recording, put every patched attribute back, and finish the trace file."""
    from dsprof import session

    session.stop()


def step() -> None:
    """Say that a training step has ended, where no library that dsprof knows marks it.

    From the first call on, only these calls count as steps.
    """
    from dsprof import session

    on = session.current()
    if on is not None and on.recorder.recording:
        on.recorder.progress.end_step("user")


def annotate(name: str) -> AbstractContextManager[None]:
    """Name a span of the program; usable with `with` and as a decorator."""
    from dsprof import session

    return session.annotate(name)


def load(path: str | os.PathLike[str]) -> RunSummary:
    """Summarise the run in a trace file or folder.

    Raises:
        TraceError: there is no readable trace at `path`.
    """
    from pathlib import Path

    from dsprof.analysis.summarise import summarise
    from dsprof.trace.run import find_run

    return summarise(find_run([Path(path)]))
