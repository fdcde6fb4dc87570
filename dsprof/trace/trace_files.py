"""Which trace files there are where a user points: files, folders, archives and addresses."""

from __future__ import annotations

import os
import os.path  # its questions answer False where Path's raise: in folders we may not enter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import filterfalse
from pathlib import Path

import msgspec

from dsprof.config import FIELDS
from dsprof.errors import TraceError
from dsprof.files import inputs
from dsprof.files.decoding import UNDECODABLE
from dsprof.files.inputs import input_path, is_folder, is_local, open_input, read_input, real_name
from dsprof.files.ownership import foreign_link
from dsprof.files.read_ahead import answers, read_ahead
from dsprof.findings.wording import some
from dsprof.trace.candidates import Stranger, TraceFile
from dsprof.trace.host_folders import host_folders
from dsprof.trace.readers import READERS, reader_of
from dsprof.trace.readers.base import START_BYTES, Reader
from dsprof.trace.readers.native import READER as NATIVE
from dsprof.trace.rolling.parts import is_part
from dsprof.trace.schema import FILE_PATTERN
from dsprof.trace.source import LARGEST_WHOLE_BYTES, file_of, is_there, is_zip, members

_PATTERNS = (FILE_PATTERN, FILE_PATTERN + ".gz", "*.pt.trace.json", "*.pt.trace.json.gz")

_PAGES = (".md", ".rst")
"""Pages about a run may quote its logs: such a file is read where it is given by name."""

_SAVED = (
    "a saved diagnosis, which holds no trace: give it to dsprof report, compare or check, or "
    "give the traces"
)
_OF_TORCH_SAVE = "data.pkl"
_CHECKPOINT = "a file of torch.save, such as a checkpoint; give the traces or logs of the run"
_RECORD_FIRST = "record a run first: DSPROF=1 torchrun --nproc-per-node 2 train.py"
_FOLDER = (
    "give the folder that the run named in its last line; a run that ended before its first "
    "collective, such as in init_process_group, wrote none"
)
_MOST_FOLDERS = 5
_MOST_LOOKS = 256
"""Most objects of a store that are opened to recognise them; each costs a request."""


@contextmanager
def bounded_memory(path: Path) -> Iterator[None]:
    """Say which file memory does not suffice for: the others may well be read.

    Raises:
        TraceError: memory ran out.
    """
    try:
        yield
    except MemoryError:
        raise TraceError(
            f"{path}: not enough memory to read it; use a machine with more memory"
        ) from None


def reader_for(path: Path) -> Reader:
    """Return the reader of a file; that of native traces says best what an unknown file is."""
    return reader_of(path) or NATIVE


class _DiagnosisMarks(msgspec.Struct):
    schema_version: int
    findings: msgspec.Raw


def is_diagnosis(path: Path) -> bool:
    """Say whether a file is a diagnosis that `--format json` wrote; false if it cannot be read."""
    try:
        with open_input(path) as file:
            start = file.read(START_BYTES)
        # Native traces are arrays: their first byte spares reading the rest.
        if start[:1] != b"{" or any(reader.recognises(start) for reader in READERS):
            return False
        msgspec.json.decode(read_input(path, LARGEST_WHOLE_BYTES), type=_DiagnosisMarks)
    except (OSError, *UNDECODABLE):
        return False
    return True


def trace_files(paths: Sequence[Path]) -> tuple[list[Path], list[Stranger]]:
    """Return the files to read, and archives that cannot be opened.

    Raises:
        TraceError: there are none, or a folder cannot be read.
    """
    files: dict[str, Path] = {}
    strangers: list[Stranger] = []
    for path in paths:
        for file in _in_folder(path, strangers) if _is_folder(path) else [path]:
            if file is not path and is_local(file) and (why := _why_absent(file)):
                strangers.append(Stranger(file, why, is_unread=True))
                continue
            try:
                inside = _inside(file, is_given=file is path)
            except TraceError as error:
                strangers.append(stranger(file, error))
                continue
            for one in inside:
                files.setdefault(real_name(one), one)
    if not files and not strangers:
        raise TraceError(
            f"{', '.join(map(str, paths))}: no trace files ({FILE_PATTERN}) here, nor files "
            "of other tools that are read (docs/reference/files.md in the dsprof repository); "
            f"{_folders_inside(paths)}"
        )
    return list(files.values()), strangers


def _why_absent(file: Path) -> str:
    """Say why a file that a folder lists is not there, "" if it is."""
    try:
        os.stat(file)
    except OSError as error:
        return "a broken link" if os.path.islink(file) else f"cannot be read: {error.strerror}"
    return ""


def _inside(file: Path, *, is_given: bool) -> list[Path]:
    """Return the file, or those in an archive; of one that is not given those that are known.

    Raises:
        TraceError: the archive cannot be opened, or is a given checkpoint.
    """
    if not is_zip(file):
        return [file]
    found = [*filterfalse(is_part, members(file))]
    if any(one.name == _OF_TORCH_SAVE for one in found):
        if is_given:
            raise TraceError(f"{file}: {_CHECKPOINT}")
        return []
    return found if is_given else [*filter(_may_be_read, found)]


def _may_be_read(path: Path) -> bool:
    try:
        return _is_named(path) or reader_of(path) is not None
    except TraceError:  # met again, and said, when it is read
        return True


def _folders_inside(paths: Sequence[Path]) -> str:
    """Name folders of which one may be what was meant."""
    try:
        found = sorted(one.name for path in paths for one in inputs.entries(path) if is_folder(one))
    except OSError:
        found = []
    if not found:
        return _FOLDER
    return f"folders inside are not searched; give one of these: {some(found, _MOST_FOLDERS)}"


def given_path(given: str | os.PathLike[str]) -> Path:
    """Return the file, folder or address that a user names.

    Raises:
        TraceError: it is an address that cannot be read.
    """
    try:
        return input_path(given)
    except ValueError as error:
        raise TraceError(str(error)) from None


def _is_folder(path: Path) -> bool:
    try:
        return is_folder(path)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None


def _in_folder(folder: Path, strangers: list[Stranger]) -> list[Path]:
    """Return the traces in a folder, without links that another user may have planted there."""
    try:
        names = inputs.entries(folder)
    except OSError as error:
        raise TraceError(f"{folder}: the folder cannot be read: {error.strerror}") from None
    for inside in answers(_in_host_folder, host_folders([*names])):
        if isinstance(inside, Stranger):
            strangers.append(inside)
        else:
            names += inside
    # A copy that replaces a file is hidden until it is whole; a killed process leaves it.
    shown = [path for path in names if not path.name.startswith(".")]
    files = [path for path in shown if path.suffix not in _PAGES and not is_part(path)]
    if not is_local(folder):
        files = _named_or_few(files, folder, strangers)
    unopened = read_ahead(files, lambda path: [] if _is_named(path) else [path])
    return [path for path in unopened if not foreign_link(path) and is_trace(path)]


def _in_host_folder(folder: Path) -> list[Path] | Stranger:
    try:
        return inputs.entries(folder)
    except OSError as error:
        return Stranger(folder, f"the folder cannot be read: {error.strerror}")


def _named_or_few(files: list[Path], folder: Path, strangers: list[Stranger]) -> list[Path]:
    """Leave out objects without the name of a trace if they are too many to open."""
    named = [path for path in files if _is_named(path)]
    others = len(files) - len(named)
    if others <= _MOST_LOOKS:
        return files
    why = (
        f"{others:,} objects without the name of a trace: too many to open; give the addresses "
        "of those to read"
    )
    strangers.append(Stranger(folder, why))
    return named


def is_trace(path: Path) -> bool:
    """Say whether a file is a trace by its content, or its name calls it one."""
    if _is_named(path):
        return True
    try:
        return inputs.is_file(path) and (is_zip(path) or reader_of(path) is not None)
    except TraceError:
        return False


def _is_named(path: Path) -> bool:
    return any(path.match(pattern) for pattern in _PATTERNS)


def read_headers(
    paths: Sequence[Path], unopened: Sequence[Stranger]
) -> tuple[list[TraceFile], list[Stranger]]:
    """Return the ranks that files have, and files that cannot be read beside the `unopened` ones.

    Raises:
        TraceError: a file is not there, or none can be read.
    """
    missing = [path for path in paths if is_local(path) and not is_there(path)]
    if missing:
        raise TraceError(*(f"{path}: cannot be read: {_why_missing(path)}" for path in missing))
    files: list[TraceFile] = []
    strangers = list(unopened)
    for path in read_ahead(paths, lambda path: [] if is_local(path) else [file_of(path)]):
        try:
            reader = reader_for(path)
            with bounded_memory(path):
                files += [TraceFile(path, header, reader) for header in reader.read_headers(path)]
        except TraceError as error:
            why = TraceError(f"{path}: {_SAVED}") if is_diagnosis(path) else error
            if len(paths) == 1 and not unopened:
                raise why from None
            strangers.append(stranger(path, why))
    if not files:
        first, more = strangers[0], len(strangers) - 1
        others = "the other file" if more == 1 else f"any of the other {more} files"
        rest = f" (nor can {others} be read)" if more else ""
        raise TraceError(f"{first.path}: {first.reason}{rest}")
    return files, strangers


def _why_missing(path: Path) -> str:
    if os.path.islink(path):
        return "the link is broken"
    why = "No such file or directory"
    return f"{why}; {_RECORD_FIRST if path.name == FIELDS['out'].default else _FOLDER}"


def stranger(path: Path, error: TraceError) -> Stranger:
    """Return a file that is skipped for an error, which need not name it again."""
    return Stranger(path, error.args[0].removeprefix(f"{path}: "), is_unread=True)
