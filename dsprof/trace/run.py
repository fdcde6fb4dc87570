"""From paths to one run: which files belong together, and which are passed over and why."""

from __future__ import annotations

import os.path  # its questions answer False where Path's raise: in folders we may not enter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import groupby, pairwise
from pathlib import Path

import msgspec

from dsprof.errors import TraceError
from dsprof.inputs import open_input
from dsprof.trace.format import FILE_PATTERN, Header
from dsprof.trace.reader import read_header, read_trace
from dsprof.trace.readers import reader_of
from dsprof.trace.readers.kineto import KinetoReader
from dsprof.trace.source import is_there, is_zip, members
from dsprof.trace.table import RankTrace

_PATTERNS = (FILE_PATTERN, FILE_PATTERN + ".gz", "*.pt.trace.json", "*.pt.trace.json.gz")
_LATEST_START_NS = 30 * 60 * 10**9
"""A rank that comes later than torch's longest default timeout finds no group to join."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """A file that was passed over."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of one run, in the order of their ranks; `headers[i]` is of `files[i]`."""

    files: tuple[Path, ...]
    headers: tuple[Header, ...]
    strangers: tuple[Stranger, ...] = ()


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    header: Header

    @property
    def start_ns(self) -> int:
        return self.header.started_epoch_ns


def find_run(paths: Iterable[str | Path]) -> RunFiles:
    """Find the newest run among trace files and folders of trace files.

    Files of other runs, copies, and files that cannot be read stand in `strangers`.

    Raises:
        TraceError: a path does not exist, or no file among them is a readable trace.
    """
    found, unopened = _trace_files([Path(path) for path in paths])
    files, strangers = _read_headers(found, unopened)
    files, copies = _without_copies(_with_world_size(files))
    *earlier, newest = sorted(_runs(files), key=_start_and_size)
    newest.sort(key=lambda file: file.header.rank)
    others = [_of_earlier_run(file) for run in earlier for file in run]
    return RunFiles(
        files=tuple(file.path for file in newest),
        headers=tuple(file.header for file in newest),
        strangers=(*strangers, *copies, *others),
    )


def read_run(run: RunFiles) -> Iterator[RankTrace]:
    """Read the traces of a run, one rank in memory at a time.

    Raises:
        TraceError: a file has become unreadable since `find_run`.
    """
    return map(read_rank, run.files, run.headers)


def read_rank(path: Path, header: Header) -> RankTrace:
    """Read the trace of one rank of a run, of which `header` was read before.

    Raises:
        TraceError: the file has become unreadable since.
    """
    reader = reader_of(path)
    trace = read_trace(path) if reader is None else reader.read_trace(path)
    # What a file alone does not know was found out from all of them.
    trace.header.world_size = header.world_size
    return trace


class _DiagnosisMarks(msgspec.Struct):
    schema_version: int
    findings: msgspec.Raw


def is_diagnosis(path: Path) -> bool:
    """Say whether a file is a diagnosis that `--format json` wrote; false if it cannot be read."""
    try:
        with open_input(path) as file:
            # Traces are arrays: their first byte spares reading the rest.
            start = file.read(1)
            if start != b"{" or KinetoReader().recognises(start + file.peek()):
                return False
            msgspec.json.decode(start + file.read(), type=_DiagnosisMarks)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _trace_files(paths: Sequence[Path]) -> tuple[list[Path], list[Stranger]]:
    """Return the files to read, and archives that cannot be opened."""
    files: dict[Path, Path] = {}
    strangers: list[Stranger] = []
    for path in paths:
        for file in _in_folder(path) if os.path.isdir(path) else [path]:
            try:
                inside = members(file) if is_zip(file) else [file]
            except TraceError as error:
                strangers.append(_stranger(file, error))
                continue
            for one in inside:
                files.setdefault(one.resolve(), one)
    if not files and not strangers:
        raise TraceError(
            f"{', '.join(map(str, paths))}: no trace files ({FILE_PATTERN}) here, nor traces of "
            "torch.profiler; give the folder that the run named in its last line"
        )
    return list(files.values()), strangers


def _in_folder(folder: Path) -> list[Path]:
    """Return the files of a folder that are traces by content, or that their names call traces."""
    try:
        names = sorted(folder.iterdir())
    except OSError as error:
        raise TraceError(f"{folder}: the folder cannot be read: {error.strerror}") from None
    return [path for path in names if _claims_to_be_trace(path) or _is_trace(path)]


def _claims_to_be_trace(path: Path) -> bool:
    return any(path.match(pattern) for pattern in _PATTERNS)


def _is_trace(path: Path) -> bool:
    try:
        return os.path.isfile(path) and (is_zip(path) or reader_of(path) is not None)
    except TraceError:
        return False


def _read_headers(
    paths: Sequence[Path], unopened: Sequence[Stranger]
) -> tuple[list[_File], list[Stranger]]:
    files: list[_File] = []
    strangers = list(unopened)
    for path in paths:
        try:
            reader = reader_of(path)
            header = read_header(path) if reader is None else reader.read_header(path)
            files.append(_File(path, header))
        except TraceError as error:
            if (len(paths) == 1 and not unopened) or not is_there(path):
                raise
            strangers.append(_stranger(path, error))
    if not files:
        first, more = strangers[0], len(strangers) - 1
        rest = f" (and none of the other {more} files can be read)" if more else ""
        raise TraceError(f"{first.path}: {first.reason}{rest}")
    return files, strangers


def _stranger(path: Path, error: TraceError) -> Stranger:
    return Stranger(path, error.args[0].removeprefix(f"{path}: "))


def _with_world_size(files: Sequence[_File]) -> list[_File]:
    """Give the files that do not say how many ranks there were the number that they show."""
    unsaid = [file.header for file in files if not file.header.world_size]
    most = max((header.rank + 1 for header in unsaid), default=0)
    for header in unsaid:
        header.world_size = most
    return list(files)


def _without_copies(files: Sequence[_File]) -> tuple[list[_File], list[Stranger]]:
    kept: dict[tuple[str, int, int, str, int], _File] = {}
    copies: list[Stranger] = []
    for file in files:
        header = file.header
        writer = (header.run_key, header.rank, file.start_ns, header.host, header.pid)
        original = kept.setdefault(writer, file)
        if original is not file:
            copies.append(Stranger(file.path, f"a copy of {original.path}"))
    return list(kept.values()), copies


def _runs(files: Iterable[_File]) -> Iterator[list[_File]]:
    def key(file: _File) -> tuple[str, int]:
        return file.header.run_key, file.header.world_size

    for _, group in groupby(sorted(files, key=lambda file: (key(file), file.start_ns)), key):
        yield from _split(list(group))


def _split(files: list[_File]) -> Iterator[list[_File]]:
    """Split files in the order of their starts at the widest pause, until each part is one run.

    Runs that share a key (the same command, typed twice) are told apart by what one run cannot
    have: a rank twice, or a start later than the others would have waited for it.
    """
    parts = [files]
    while parts:
        part = parts.pop()
        if _is_one_run(part):
            yield part
            continue
        pauses = [after.start_ns - before.start_ns for before, after in pairwise(part)]
        cut = pauses.index(max(pauses)) + 1
        parts += [part[:cut], part[cut:]]


def _is_one_run(files: Sequence[_File]) -> bool:
    ranks = {file.header.rank for file in files}
    return len(ranks) == len(files) and files[-1].start_ns - files[0].start_ns <= _LATEST_START_NS


def _start_and_size(run: Sequence[_File]) -> tuple[int, int]:
    return run[0].start_ns, len(run)


def _of_earlier_run(file: _File) -> Stranger:
    header = file.header
    return Stranger(
        file.path,
        f"rank {header.rank} of {header.world_size} of an earlier run (started "
        f"{_moment(header.started_epoch_ns)}); give the files of that run by name to read it",
    )


def _moment(epoch_ns: int) -> str:
    moment = datetime.fromtimestamp(epoch_ns / 1e9, tz=timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
