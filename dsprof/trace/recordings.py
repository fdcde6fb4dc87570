"""Recordings that follow each other in one process: which one of them is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dsprof.trace.candidates import Process, Stranger, TraceFile
from dsprof.trace.readers.native import was_switched_off
from dsprof.trace.run_choice import Choice, choose_run
from dsprof.trace.schema import OF_PROCESS, Header


def until(files: Sequence[TraceFile], last: Path) -> list[TraceFile]:
    """Leave out all that was recorded after the recording to which a trace belongs."""
    left = list(files)
    while any(file.path == last for file in left):
        newest = choose_run(left).epochs[-1]
        if any(file.path == last for file in newest):
            return left
        paths = {file.path for file in newest}
        left = [file for file in left if file.path not in paths]
    return list(files)


def choose_recording(
    files: Sequence[TraceFile], epoch: int | None
) -> tuple[Choice, list[Stranger]]:
    """Choose an epoch of the newest run as `choose_run` does, and name what is no epoch of it.

    A process that went on and was recorded again has not restarted: its last recording counts.

    Raises:
        TraceError: the run has no epoch of that number.
    """
    newest = choose_run(files)
    over = _earlier_recordings(newest.epochs)
    if not over and epoch in (None, newest.number):
        return newest, []
    left = [file for file in files if file.path not in over]
    reason = "of an earlier recording of the same process; to read it, give only its files"
    return choose_run(left, epoch), [Stranger(path, reason) for path in over]


def _earlier_recordings(starts: Sequence[Sequence[TraceFile]]) -> list[Path]:
    """Return the traces of recordings that were switched off before a process began another."""
    last: dict[Process, str] = {}  # the recording of each process
    over: set[str] = set()  # recordings that are earlier ones
    found: list[Path] = []
    for start in reversed(starts):
        mine = {_recording(file.header) for file in start} - {""}
        again = [file for file in start if last.get(file.process, "") not in {"", *mine}]
        if mine & over or (mine and again and was_switched_off(again[0].path)):
            over |= mine
            found += [file.path for file in start]
        else:
            last = {file.process: _recording(file.header) for file in start} | last
    return found


def _recording(header: Header) -> str:
    return next((key for key in header.job_keys if key.startswith(OF_PROCESS)), "")
