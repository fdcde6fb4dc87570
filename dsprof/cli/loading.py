"""From paths on the command line to the diagnosis of a run."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsprof.cli.live_states import keep_live_states
from dsprof.cli.progress import processes_for, progress_on_terminal
from dsprof.errors import DsprofError
from dsprof.files.inputs import read_input

if TYPE_CHECKING:
    from dsprof.diagnosis.model import Diagnosis


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
    from dsprof.analysis.baseline import read_baseline
    from dsprof.config import load_thresholds
    from dsprof.diagnosis.build import diagnose
    from dsprof.diagnosis.model import from_json
    from dsprof.trace.run import find_run, is_diagnosis
    from dsprof.trace.source import LARGEST_WHOLE_BYTES, size_of

    saved = [path for path in paths if is_diagnosis(path)]
    if saved and (config or baseline or len(paths) > 1):
        raise DsprofError(
            f"{saved[0]}: a saved diagnosis is shown as it is; give only this file and no "
            "--config or --baseline, or give the traces"
        )
    if saved:
        return from_json(read_input(saved[0], LARGEST_WHOLE_BYTES), str(saved[0]))
    thresholds = load_thresholds(config, threshold_schema()) if config else {}
    costs = (read_baseline(baseline), str(baseline)) if baseline else None
    run = find_run(paths)
    keep_live_states(run)
    processes = processes_for([size_of(path) for path in run.files])
    progress = None if is_quiet else progress_on_terminal()
    return diagnose(run, thresholds, baseline=costs, processes=processes, progress=progress)
