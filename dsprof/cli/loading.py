"""From paths on the command line to the diagnosis of a run."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsprof.errors import DsprofError
from dsprof.files.inputs import read_input

if TYPE_CHECKING:
    from dsprof.diagnosis.model import Diagnosis
    from dsprof.trace.run import RunFiles

_WIDTH = 30
_SMALL_BYTES = 1 << 23
"""A second process takes as long to start as it takes to read a packed trace of this size."""


def add_judging(parser: ArgumentParser) -> None:
    """Add --config and --baseline, by which a run is judged."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML file with thresholds under 'rules:'"
    )
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="baseline of this machine, written by dsprof bench",
    )


def threshold_schema() -> dict[str, type]:
    """Return the dataclass of each rule's thresholds, by the id of the rule."""
    from dsprof.rules import all_rules

    return {rule.meta.id: type(rule.thresholds) for rule in all_rules()}


def load_diagnosis(
    paths: Sequence[Path],
    config: Path | None = None,
    baseline: Path | None = None,
    *,
    is_quiet: bool = False,
) -> Diagnosis:
    """Judge the traces under `paths`, or read the diagnosis that `report --format json` saved.

    Raises:
        DsprofError: a path cannot be read, or the configuration is wrong.
    """
    from dsprof.diagnosis.model import from_json
    from dsprof.trace.run import is_diagnosis
    from dsprof.trace.source import LARGEST_WHOLE_BYTES

    saved = [path for path in paths if is_diagnosis(path)]
    if saved and (config or baseline or len(paths) > 1):
        raise DsprofError(
            f"{saved[0]}: a saved diagnosis is shown as it is; give only this file and no "
            "--config or --baseline, or give the traces"
        )
    if saved:
        return from_json(read_input(saved[0], LARGEST_WHOLE_BYTES), str(saved[0]))
    return load_run_and_diagnosis(paths, config, baseline, is_quiet=is_quiet)[1]


def load_run_and_diagnosis(
    paths: Sequence[Path],
    config: Path | None = None,
    baseline: Path | None = None,
    *,
    is_quiet: bool = False,
) -> tuple[RunFiles, Diagnosis]:
    """Judge the traces under `paths`.

    Raises:
        DsprofError: a path cannot be read, or the configuration is wrong.
    """
    from dsprof.analysis.baseline import read_baseline
    from dsprof.config import load_thresholds
    from dsprof.diagnosis.build import diagnose
    from dsprof.trace.run import find_run
    from dsprof.trace.source import size_of

    thresholds = load_thresholds(config, threshold_schema()) if config else {}
    costs = (read_baseline(baseline), str(baseline)) if baseline else None
    run = find_run(paths)
    keep_live_states(run)
    processes = processes_for([size_of(path) for path in run.files])
    progress = None if is_quiet else progress_on_terminal()
    return run, diagnose(run, thresholds, baseline=costs, processes=processes, progress=progress)


def keep_live_states(run: RunFiles) -> None:
    """Copy the live states of dead ranks beside their traces: memory holds them for a day."""
    from dsprof.environment import boot_id
    from dsprof.recording.recorder.live_state import keep_states_of_the_dead

    here = boot_id()
    places = {
        (header.run_key, path.parent)
        for path, header in zip(run.files, run.headers, strict=True)
        if header.boot_id == here
    }
    for run_key, folder in places:
        keep_states_of_the_dead(run_key, folder)


def _show_progress(done: int, total: int) -> None:
    """Redraw the bar; it is gone when all is read."""
    filled = "#" * (_WIDTH * done // total)
    text = f"reading: rank {done} of {total} [{filled:<{_WIDTH}}]"
    sys.stderr.write(f"\r{text}" if done < total else f"\r{' ' * len(text)}\r")
    sys.stderr.flush()


def progress_on_terminal() -> Callable[[int, int], None] | None:
    """Return what draws the bar; None where standard error is no terminal."""
    return _show_progress if sys.stderr.isatty() else None


def processes_for(sizes: Sequence[int]) -> int:
    """Return how many processes are worth their start for files of these sizes in bytes."""
    worthwhile = sum(sizes) // _SMALL_BYTES
    return max(1, min(len(sizes), worthwhile, len(os.sched_getaffinity(0))))
