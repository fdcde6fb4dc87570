"""Earlier recordings of a rank in the same folder make room for a new one.

A job in a crash loop would fill the disk. So what is over moves into one archive of the rank,
`trace.rank00003.earlier.zip`, which a report reads as a folder: sums first, then details, then
profiles, of the newest recording first. What finds no room is dropped.

In a folder of a host, ranks that have moved to another one leave theirs. The first rank of the host
moves them into one archive, `trace.moved.earlier.zip`.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from dsprof.environment.launchers import count
from dsprof.environment.machine import boot_id
from dsprof.errors import TraceError
from dsprof.files import notes
from dsprof.trace.dumps.state_file import kept_name, read_state, remove_live_state
from dsprof.trace.host_folders import HOSTS, shared_folder
from dsprof.trace.lines import LINES, header_of
from dsprof.trace.rolling.parts import (
    KEPT,
    PROFILE,
    SERIES,
    STATE,
    STEPS,
    TAILS,
    copy_of,
    files_of_rank,
    is_closed,
    is_rolling,
    part_of,
    written_at_s,
)
from dsprof.trace.rolling.step_sums import sums_of
from dsprof.trace.schema import Header

MOST_RECORDINGS = 32
"""A report reads no more epochs."""

MOVED = "trace.moved.earlier.zip"

_BOOK = re.compile(r"trace(?:\.(\d{1,9}))?\.rank(\d{5,9})\.json")
_FILE = re.compile(r"trace(?:\.(\d{1,9}))?\.rank(\d{5,9})\..+")
_ARCHIVE = re.compile(r"trace\.rank(\d{5,9})\.earlier\.zip")
_QUIET_S = 60.0
"""Where no lock tells whether a process lives, as between machines: it writes every 5 s."""

_LEVEL = 3
_BLOCK_BYTES = 1 << 20
_ENTRY_BYTES = 512  # what an archive adds to a file
_SUMS = (b'{"cat":"rollup"', b'{"cat":"totals"')
"""How the lines begin that hold sums."""

_STEP = re.compile(rb'"args":{"step":(\d{1,18}),')


class Earlier(NamedTuple):
    """What there is of a rank before a recording begins."""

    nbytes: int  # that it takes on disk
    number: int  # the first of which there is no file, here or in an archive


def put_away(folder: Path, rank: int, budget_bytes: int) -> Earlier:
    """Archive the recordings of a rank that are over.

    Those of other users, those that are written, and files that were renamed stay as they are.
    """
    archive = folder / f"trace.rank{rank:05d}.earlier.zip"
    used = _names(folder)  # before the archives are read: recordings move from here to there
    with ExitStack() as locks, suppress(OSError, zipfile.BadZipFile):
        over = [book for book in _recordings(folder, rank) if _is_over(book, locks)]
        if over:
            _archive(over, [archive], budget_bytes // 8, MOST_RECORDINGS)
    used += _recordings_in(archive) + _recordings_in(folder / MOVED)
    numbers = (number for of_rank, number in map(_place, used) if of_rank == rank)
    return Earlier(_size(archive, folder, rank), max(numbers, default=-1) + 1)


def put_away_moved(folder: Path, header: Header, most_bytes: int) -> int:
    """Archive, as the first rank of a host, the recordings of ranks that are now elsewhere.

    Returns the size of their archive.
    """
    archive, here = folder / MOVED, _ranks_here(header)
    if not here or folder.parent.name != HOSTS:
        return 0
    with ExitStack() as locks, suppress(OSError, zipfile.BadZipFile):
        names = ((folder / name, _ARCHIVE.fullmatch(name)) for name in _names(folder))
        old = [path for path, name in names if name and int(name[1]) not in here]
        old = [path for path in old if _recordings_in(path)]
        moved = (book for book in _recordings(folder) if _rank(book) not in here)
        over = [book for book in moved if _is_over(book, locks)]
        if over or old:
            _archive(over, [archive, *old], most_bytes, MOST_RECORDINGS * len(here))
    return archive.lstat().st_size if _is_mine(archive) else 0


def _ranks_here(header: Header) -> range:
    """Return the ranks of this host, on the first of them, if the launcher says how many."""
    sizes = (count(os.environ.get(name, "")) for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"))
    return range(header.rank, header.rank + max(sizes)) if header.local_rank == 0 else range(0)


def hold(file: int) -> None:
    """Show as long as this process lives that it writes a file."""
    with suppress(OSError):  # some file systems have no locks
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def _recordings(folder: Path, rank: int | None = None) -> list[Path]:
    """Return the rolling recordings of a rank, or of all, by this user; the newest first.

    Each rank has numbered its own. Only between ranks the wall clock tells, which may be set back.
    """
    books = [folder / name for name in _names(folder) if _BOOK.fullmatch(name)]
    mine = [book for book in books if rank in (None, _rank(book)) and _is_mine(book)]
    headers = ((book, header_of(book)) for book in mine)
    found = [
        (one.started_epoch_ns, book)
        for book, one in headers
        if one and one.rank == _rank(book) and is_rolling(one)
    ]
    by_clock = [book for _, book in sorted(found, reverse=True)]
    by_number: defaultdict[int, list[Path]] = defaultdict(list)
    for book in sorted(by_clock, key=lambda book: _place(book.name)[1]):
        by_number[_rank(book)].append(book)
    return [by_number[_rank(book)].pop() for book in by_clock]


def _place(name: str) -> tuple[int, int]:
    """Return the rank of a file, and the number of its recording; -1 of any other file."""
    found = _FILE.fullmatch(name)
    return (int(found[2]), int(found[1] or 0)) if found else (-1, -1)


def _rank(book: Path) -> int:
    return _place(book.name)[0]


def _is_mine(path: Path) -> bool:
    """Say whether a file is of this user, and no link."""
    with suppress(OSError):
        status = path.lstat()
        return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return False


def _size(archive: Path, folder: Path, rank: int) -> int:
    parts = (part for book in _recordings(folder, rank) for part in files_of_rank(book))
    return sum(path.lstat().st_size for path in (archive, *parts) if _is_mine(path))


def _is_over(book: Path, locks: ExitStack) -> bool:
    """Say whether the process of a recording has ended; keep it locked then."""
    header = header_of(book)
    file = os.open(book, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    locks.callback(os.close, file)
    is_here = header is not None and header.boot_id == boot_id() != ""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        is_here = False
    return is_here or is_closed(book) or notes.now_s(book.parent) - written_at_s(book) > _QUIET_S


# -- the archive ----------------------------------------------------------------------------------

_Read = Callable[[int], "bytes | None"]
"""Returns what is to be in the archive; None if it is longer than so many bytes."""


def _archive(
    over: Sequence[Path], archives: Sequence[Path], room: int, most_recordings: int
) -> None:
    """Replace the first archive, as a whole, by one with all recordings; then remove the others.

    Raises:
        OSError: it cannot be written, or another process does so now.
        BadZipFile: somebody else made the file that is there.
    """
    archive, *others = archives
    if os.path.lexists(archive) and not _is_mine(archive):
        raise FileExistsError(archive)
    files = {one.name: one for book in over for one in _files_of(book)}
    files |= {part_of(book, STATE).name: _state_of(book) for book in over}
    readers: dict[str, _Read] = {
        name: partial(_packed, path) for name, path in files.items() if _is_mine(path)
    }
    for book in over:
        if (name := part_of(book, SERIES).name) in readers and not is_closed(book):
            readers[name] = partial(_completed_series, book)
    with ExitStack() as opened:
        file = _locked(copy_of(archive), opened)
        for one in others:
            _locked(copy_of(one), opened)
        for one in filter(Path.exists, (*others, archive)):
            # What is in it was whole: a removal may have been cut short.
            old = opened.enter_context(zipfile.ZipFile(one))
            readers |= {name: partial(_archived, old, name) for name in old.namelist()}
        _write(file, readers, room, most_recordings)
        file.flush()
        os.fsync(file)  # what it replaces is removed at once
        os.replace(copy_of(archive), archive)
        for one in others:
            one.unlink()
    for book in over:
        _remove_state(_state_of(book))
        parts = reversed(_files_of(book))
        for path in filter(_is_mine, chain.from_iterable((copy_of(one), one) for one in parts)):
            path.unlink()


def _files_of(book: Path) -> list[Path]:
    return [*files_of_rank(book), part_of(book, PROFILE)]


def _state_of(book: Path) -> Path:
    """Return where the copy of the state of a killed process is."""
    header = header_of(book)
    return shared_folder(book) / kept_name(header) if header else part_of(book, STATE)


def _remove_state(copy: Path) -> None:
    """Remove the state of a killed process: in memory as well, where it would be copied again."""
    if _is_mine(copy):
        with suppress(TraceError):
            remove_live_state(read_state(copy).header)
        copy.unlink()


def _locked(copy: Path, opened: ExitStack) -> BinaryIO:
    """Open the file that will replace an archive; closing `opened` removes it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file = opened.enter_context(os.fdopen(os.open(copy, flags, 0o644), "w+b"))
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    opened.callback(copy.unlink, missing_ok=True)
    os.ftruncate(file.fileno(), 0)
    return file


def _write(file: BinaryIO, readers: Mapping[str, _Read], room: int, most_recordings: int) -> None:
    """Write what finds room: sums, then details, then profiles; `readers` has the newest first."""
    books = [*filter(_BOOK.fullmatch, readers)][:most_recordings]
    with zipfile.ZipFile(file, "w") as archive:
        for endings in ((".json",), (SERIES,), (STATE, *TAILS, KEPT, STEPS), (PROFILE,)):
            for book in books:
                for name in (book.removesuffix(".json") + ending for ending in endings):
                    read = readers.get(name)
                    data = read(room - _ENTRY_BYTES) if read else None
                    if data is not None:
                        archive.writestr(zipfile.ZipInfo(name), data)
                        room -= len(data) + _ENTRY_BYTES
            books = [book for book in books if book in archive.NameToInfo]


def _archived(archive: zipfile.ZipFile, name: str, most_bytes: int) -> bytes | None:
    return archive.read(name) if archive.getinfo(name).file_size <= most_bytes else None


def _packed(path: Path, most_bytes: int) -> bytes | None:
    """Return a file, packed."""
    with path.open("rb") as file:
        if path.name.endswith(".gz"):
            data = file.read(max(most_bytes, 0) + 1)
        else:
            data = _gzipped(iter(partial(file.read, _BLOCK_BYTES), b""))
    return data if len(data) <= most_bytes else None


def _completed_series(book: Path, most_bytes: int) -> bytes | None:
    """Return the sums over time with the newest, which a killed process has only in its tails.

    These come first: the last block of the series may be cut.
    """
    newest = _gzipped(_newest_sums(book))
    series = _packed(part_of(book, SERIES), most_bytes - len(newest))
    return None if series is None else newest + series


def _newest_sums(book: Path) -> Iterator[bytes]:
    """Yield the whole lines of the tails that hold sums, then sums of the steps after these."""
    last = -1
    for tail in (part_of(book, ending) for ending in TAILS):
        if _is_mine(tail):
            with tail.open("rb") as file:
                for line in iter(partial(file.readline, _BLOCK_BYTES), b""):
                    if line.startswith(_SUMS) and line.endswith(b"\n"):
                        yield line
                        step = _STEP.search(line)
                        last = max(last, int(step[1]) if step else -1)
    yield from _unsummed(book, last + 1)


def _unsummed(book: Path, first_step: int) -> Iterator[bytes]:
    """Yield sums of steps since one, of which there are only details."""
    from dsprof.trace.background import mark_background  # imports more than a recording needs
    from dsprof.trace.reader import read_trace

    with suppress(TraceError):
        trace = read_trace(book, range(first_step, 1 << 62))
        mark_background(trace)
        for one in sums_of(trace, first_step).values():
            yield msgspec.json.encode(LINES["totals"](one)) + b",\n"


def _gzipped(blocks: Iterable[bytes]) -> bytes:
    packer = zlib.compressobj(_LEVEL, wbits=16 + zlib.MAX_WBITS)
    return b"".join([*map(packer.compress, blocks), packer.flush()])


def _recordings_in(archive: Path) -> list[str]:
    with suppress(OSError, zipfile.BadZipFile):
        if _is_mine(archive):
            with zipfile.ZipFile(archive) as file:
                return [*filter(_BOOK.fullmatch, file.namelist())]
    return []
