"""From paths on the command line to the diagnosis of a run."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from dsprof.config.settings import in_one_line
from dsprof.errors import ConfigError, DsprofError, escaped
from dsprof.files.inputs import input_path, read_input
from dsprof.files.remote import is_address

if TYPE_CHECKING:
    from dsprof.analysis.engine import Engine, Progress
    from dsprof.diagnosis.model import Diagnosis
    from dsprof.trace.run import RunFiles
    from dsprof.trace.selection import Selection

_WIDTH = 30
_SMALL_BYTES = 1 << 23
"""A second process takes as long to start as it takes to read a packed trace of this size."""

_PROCESS_BYTES = 400_000_000
"""What a process takes that reads a large trace."""


def trace_path(text: str) -> Path:
    """Return what a PATH on the command line names: a local file or folder, or an address.

    Raises:
        ConfigError: it is empty, or an address that is not read.
    """
    try:
        return input_path(text)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def local_path(text: str) -> Path:
    """Return a local file or folder, where no address is taken.

    Raises:
        ConfigError: it is empty, or an address.
    """
    if is_address(text):
        raise ConfigError("an address cannot be given here; give a local path")
    return trace_path(text)


def add_paths(
    parser: ArgumentParser, text: str, path_of: Callable[[str], Path] = trace_path
) -> None:
    """Add the traces, with `text` as their help."""
    parser.add_argument("paths", nargs="+", type=path_of, metavar="PATH", help=text)


def add_thresholds(parser: ArgumentParser) -> None:
    """Add --config, which names a file with thresholds of rules."""
    parser.add_argument(
        "--config", type=local_path, metavar="FILE", help="YAML file with thresholds under 'rules:'"
    )


def add_judging(parser: ArgumentParser) -> None:
    """Add --config and --baseline, by which a run is judged."""
    add_thresholds(parser)
    parser.add_argument(
        "--baseline",
        type=local_path,
        metavar="FILE",
        help="baseline of this machine, written by dsprof bench",
    )


def add_reading(parser: ArgumentParser) -> None:
    """Add where traces are read."""
    parser.add_argument(
        "--engine",
        default="",
        metavar="ADDRESS",
        help="read on a Dask cluster: dask://HOST:PORT (default: processes of this machine)",
    )
    parser.add_argument("--ranks", metavar="RANKS", help="read only these ranks: 0-63,128")
    parser.add_argument("--hosts", metavar="HOSTS", help="read only these hosts: node1,node2")
    parser.add_argument(
        "--steps",
        metavar="FROM:TO",
        help="read only these steps: 1000:1200 is 1000 to 1199",
    )
    parser.add_argument(
        "--since",
        metavar="TIME",
        help="read only steps since TIME: 30m or 2h before the end, or 2026-11-24T10:00",
    )
    add_epoch(parser)


def add_epoch(parser: ArgumentParser) -> None:
    """Add --epoch, by which one start of a job is read."""
    parser.add_argument(
        "--epoch",
        type=_epoch,
        metavar="N",
        help="read epoch N of a job that restarted, counted from 1 (default: the last)",
    )


def _epoch(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,5}", text):
        raise ConfigError(f"invalid epoch '{in_one_line(text)}': write --epoch 1 for the first")
    return int(text)


class Reading(NamedTuple):
    """How traces are read."""

    engine: str = ""
    selection: Selection | None = None  # None: all of the run
    is_quiet: bool = False

    @classmethod
    def of(cls, arguments: Namespace) -> Reading:
        """Take what `add_reading` and --quiet gave.

        Raises:
            ConfigError: ranks, steps or the time are invalid.
        """
        from dsprof.trace.selection import Selection, hosts_in, ranks_in, since_in, steps_in

        if arguments.steps and arguments.since:
            raise ConfigError("--steps and --since both choose steps; give only one of them")

        try:
            selection = Selection(
                ranks=ranks_in(arguments.ranks) if arguments.ranks is not None else (),
                hosts=hosts_in(arguments.hosts) if arguments.hosts is not None else frozenset(),
                steps=steps_in(arguments.steps) if arguments.steps is not None else None,
                since=since_in(arguments.since) if arguments.since is not None else None,
                epoch=arguments.epoch,
            )
        except ValueError as error:
            raise ConfigError(escaped(str(error))) from None
        return cls(arguments.engine, selection, getattr(arguments, "quiet", False))


_BY_DEFAULT = Reading()


def threshold_schema() -> dict[str, type]:
    """Return the dataclass of each rule's thresholds, by the id of the rule."""
    from dsprof.rules import all_rules

    return {rule.meta.id: type(rule.thresholds) for rule in all_rules()}


def load_diagnosis(
    paths: Sequence[Path],
    config: Path | None = None,
    baseline: Path | None = None,
    reading: Reading = _BY_DEFAULT,
) -> Diagnosis:
    """Judge the traces under `paths`, or read the diagnosis that `report --format json` saved.

    Raises:
        DsprofError: a path cannot be read, or the configuration is wrong.
    """
    from dsprof.diagnosis.document import from_json
    from dsprof.trace.selection import EVERYTHING
    from dsprof.trace.source import LARGEST_WHOLE_BYTES
    from dsprof.trace.trace_files import is_diagnosis

    saved = [path for path in paths if is_diagnosis(path)]
    is_chosen = reading.engine or (reading.selection or EVERYTHING) != EVERYTHING
    if saved and (config or baseline or is_chosen or len(paths) > 1):
        raise DsprofError(
            f"{saved[0]}: a saved diagnosis is shown as it is; give only this file, without "
            "options of reading or judging, or give the traces"
        )
    if saved:
        return from_json(read_input(saved[0], LARGEST_WHOLE_BYTES), str(saved[0]))
    return load_run_and_diagnosis(paths, config, baseline, reading)[1]


def load_run_and_diagnosis(
    paths: Sequence[Path], config: Path | None, baseline: Path | None, reading: Reading
) -> tuple[RunFiles, Diagnosis]:
    """Judge the traces under `paths`; of a run that goes on, not the end.

    Raises:
        DsprofError: a path cannot be read, or the configuration is wrong.
    """
    from dsprof.analysis.baseline import read_baseline
    from dsprof.analysis.engine import Processes, unshown
    from dsprof.config import load_thresholds
    from dsprof.diagnosis.build import diagnose
    from dsprof.files.read_ahead import answers
    from dsprof.trace.dumps.kept_states import keep_states_of
    from dsprof.trace.run import check_steps, find_run, goes_on
    from dsprof.trace.selection import EVERYTHING
    from dsprof.trace.source import size_of

    far = _engine_at(reading.engine) if reading.engine else None
    thresholds = load_thresholds(config, threshold_schema()) if config else {}
    costs = (read_baseline(baseline), str(baseline)) if baseline else None
    # Workers of a cluster have a current folder of their own.
    places = [path.absolute() for path in paths] if far else paths
    run = find_run(places, reading.selection or EVERYTHING)
    keep_states_of(run)
    sizes = list(answers(size_of, run.files))
    engine = far or Processes(processes_for(sizes))
    progress = unshown if reading.is_quiet else progress_on_terminal(sum(sizes))
    diagnosis = diagnose(
        run,
        thresholds,
        baseline=costs,
        engine=engine,
        progress=progress,
        is_running=goes_on(run),
    )
    if run.selection.steps and not diagnosis.run.steps:
        check_steps(run)
    return run, diagnosis


def _engine_at(address: str) -> Engine:
    """Return the engine at an address.

    Raises:
        ConfigError: there is no such kind of engine.
    """
    from dsprof.analysis.dask_engine import SCHEME, DaskEngine

    place = address.removeprefix(SCHEME)
    if place == address or not re.fullmatch(r"[^\s/@]+:\d{1,5}", place):
        raise ConfigError(f"unknown --engine value; use {SCHEME}HOST:PORT")
    return DaskEngine(place)


def progress_on_terminal(nbytes: int = 0) -> Progress:
    """Return what draws a bar of reading so many bytes, where standard error is a terminal."""
    from dsprof.analysis.engine import unshown

    return partial(_show_progress, nbytes, monotonic()) if sys.stderr.isatty() else unshown


def _show_progress(nbytes: int, since_s: float, done: int, total: int) -> None:
    """Redraw the bar; it is gone when all is read."""
    spent_s = monotonic() - since_s
    bar = "#" * (_WIDTH * done // total)
    rate = f"{nbytes * done / total / max(spent_s, 1e-3) / 1e6:.0f} MB/s, " if nbytes else ""
    left = f"{rate}{spent_s * (total - done) / done:.0f} s left"
    text = f"reading: rank {done} of {total}, {left} [{bar:<{_WIDTH}}]"
    text = text[: get_terminal_size().columns - 1]  # of a line that wraps only the end is redrawn
    sys.stderr.write(f"\r{text}\x1b[K" if done < total else "\r\x1b[K")
    sys.stderr.flush()


def processes_for(sizes: Sequence[int]) -> int:
    """Return how many processes are worth their start for files of these sizes in bytes."""
    from dsprof.environment.cgroups import usable_bytes, usable_cpus

    worthwhile = sum(sizes) // _SMALL_BYTES
    fitting = usable_bytes() / _PROCESS_BYTES  # may be infinite
    return int(max(1, min(len(sizes), worthwhile, usable_cpus(), fitting)))
