"""The bytes of a trace file: plain, gzip, or one file inside a zip, read in bounded memory.

Text in UTF-16 or with a byte order mark, as Windows writes it, is given as plain UTF-8.

A file inside a zip is named as if the zip were a folder: `run.zip/rank0.json`. Nothing is ever
unpacked to disk, so a name inside an archive can lead nowhere.
"""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from io import BufferedIOBase, BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from dsprof.errors import TraceError
from dsprof.files import inputs
from dsprof.files.inputs import FileStatus, is_local, open_input, status_of
from dsprof.files.remote import RemoteError

_open_gzip: Callable[..., gzip.GzipFile] = gzip.GzipFile
_gzip_error: Any = zlib.error
with suppress(ImportError):  # thrice as fast, where there is a build of it
    from isal import igzip, isal_zlib

    _open_gzip, _gzip_error = igzip.GzipFile, isal_zlib.error

LARGEST_EXPANSION = 300
"""Traces shrink 10 to 40 times; what shrinks more than this is made to fill a reader's memory."""
_HARMLESS_BYTES = 1 << 26  # a small file may expand by any factor up to here

_PARTS_A_BYTE = 32
"""A packed snapshot holds 4 to 8 objects a byte; each takes a hundred bytes of memory."""
_HARMLESS_PARTS = 1 << 20

_MOST_BROKEN = 1 << 16
"""Undecodable parts are looked at piece by piece, which takes a hundred times as long."""

LARGEST_WHOLE_BYTES = 1 << 28
"""A file that is not read piece by piece is read up to here."""

_UNPACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Only of these zipfile unpacks no more at once than it is asked for."""
_BLOCK_BYTES = 1 << 20
_MOST_MEMBERS = 1 << 15  # four files of each of 8,000 ranks
_LARGEST_DIRECTORY_BYTES = 1 << 23  # of that many, each with a path of 200 bytes

_MOST_ARCHIVES = 8  # of which the directories are kept

_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_MARKED = {
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
_EMPTY_ZIP = b"PK\x05\x06" + bytes(18)
_BROKEN = (zlib.error, _gzip_error, lzma.LZMAError, zipfile.BadZipFile)
_DAMAGE = (*_BROKEN, EOFError, OSError, ValueError)
_UNUSABLE = (*_DAMAGE, RuntimeError, NotImplementedError, struct.error)


Pieces = Callable[[BinaryIO], Sequence[tuple[int, int]]]
"""Finds in a packed file the members to read: begin and end of each, in order."""


class _Pieces(io.RawIOBase):
    """Some parts of a file, one after the other."""

    def __init__(self, file: BufferedReader, places: Sequence[tuple[int, int]]) -> None:
        self._file, self._places = file, places
        self.seek(0)

    def readable(self) -> bool:
        return True

    def seek(self, at: int, whence: int = 0) -> int:
        """Begin again: whoever unpacks goes nowhere else."""
        assert (at, whence) == (0, 0)
        self._left = [*reversed(self._places)]
        return 0

    def readinto(self, buffer: Any) -> int:
        while self._left:
            begin, end = self._left.pop()
            self._file.seek(begin)
            if count := self._file.readinto(buffer[: end - begin]):
                self._left.append((begin + count, end))
                return count
        return 0


class _Recoded(io.RawIOBase):
    """Text that begins with a byte order mark, as Windows writes it, as UTF-8 without one."""

    def __init__(self, file: BufferedIOBase, encoding: str) -> None:
        self._file, self._left = file, b""
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            packed = self._file.read(len(buffer))
            self._left = self._decoder.decode(packed, final=not packed).encode()
            if not packed:
                break
        given, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(given)] = given
        return len(given)


class Source:
    """One trace file, open; a context manager."""

    def __init__(self, path: Path, pieces: Pieces | None = None) -> None:
        """Open `path`; of a packed local file only the members that `pieces` finds.

        Raises:
            TraceError: there is no such file, or it cannot be opened.
        """
        self._path, self._pieces = path, pieces
        self._opened = ExitStack()
        self._given = 0
        try:
            self._file, self.nbytes, self._nbytes_on_disk = self._open(*_split(path))
        except _UNUSABLE as error:
            self._opened.close()
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise TraceError(f"{path}: cannot be read: {why}") from None

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes, fewer only at the end; a damaged archive ends at the damage.

        Raises:
            TraceError: it expands to more than any trace does, or a store failed.
        """
        parts = []
        while size > 0 and (part := self._read_some(size)):
            parts.append(part)
            size -= len(part)
            self._given += len(part)
        if self._given > _largest(self._nbytes_on_disk):
            raise _bomb(self._path)
        return b"".join(parts)

    def _read_some(self, size: int) -> bytes:
        """Read up to `size` bytes; none at the end, and none at damage."""
        try:
            return self._file.read1(size)
        except RemoteError as error:  # no damage: what follows may be whole
            raise self._unreadable(error) from None
        except _DAMAGE:
            return self._read_with_zlib(size)

    def _unreadable(self, error: OSError) -> TraceError:
        return TraceError(f"{self._path}: cannot be read: {error.strerror}")

    def _read_with_zlib(self, size: int) -> bytes:
        """Read what isal loses at damage: all that it unpacked in the same call."""
        file = self._file
        if type(file) is gzip.GzipFile or not isinstance(file, gzip.GzipFile):
            return b""
        try:
            packed: Any = file.fileobj
            packed.seek(0)
            self._file = gzip.GzipFile(fileobj=packed)
            self._file.seek(self._given)
            return self._file.read1(size)
        except _DAMAGE:
            return b""

    def read_whole(self) -> bytes:
        """Read a file that must be held whole.

        Raises:
            TraceError: it is larger than such a file may be.
        """
        parts: list[bytes] = []
        left = LARGEST_WHOLE_BYTES
        while part := self.read(_BLOCK_BYTES):
            parts.append(part)
            left -= len(part)
            if left < 0:
                raise TraceError(
                    f"{self._path}: larger than {LARGEST_WHOLE_BYTES >> 20} MiB, the limit "
                    "for this kind of file"
                )
        return b"".join(parts)

    @property
    def most_parts(self) -> int:
        """How many objects may be made of the file at once: a small one must not fill memory."""
        return max(_HARMLESS_PARTS, _PARTS_A_BYTE * self._nbytes_on_disk)

    @property
    def is_plain(self) -> bool:
        """Whether the file is as it is given, so that its end can be read without the rest."""
        return isinstance(self._file, BufferedReader) and not isinstance(self._file.raw, _Recoded)

    def end(self, size: int) -> bytes:
        """Read the last `size` bytes; those of a compressed file by way of all before them.

        Raises:
            TraceError: as `read`.
        """
        if self.is_plain:
            self._file.seek(max(0, self.nbytes - size))
            try:
                return self._file.read(size)
            except OSError as error:
                raise self._unreadable(error) from None
        end = b""
        while block := self.read(size):
            end = (end + block)[-size:]
        return end

    def seek(self, at_bytes: int) -> None:
        """Go on reading elsewhere in a file that `is_plain`."""
        self._file.seek(at_bytes)

    def _open(self, path: Path, member: str) -> tuple[BufferedIOBase, int, int]:
        """Return what gives the bytes, how many the file says it has, and how many are there."""
        file = self._opened.enter_context(open_input(path))
        self.status = status_of(file)
        nbytes, on_disk = self.status.nbytes, self.status.nbytes_on_disk
        stream: BufferedIOBase = file
        if member:
            info = _directory(path, self.status).get(member)
            if info is None:
                raise ValueError("no such file in the zip")
            if info.compress_type not in _UNPACKED:
                raise ValueError("zip members must be stored or deflated; pack the zip again")
            nbytes, on_disk = info.compress_size, min(info.compress_size, on_disk)
            archive = self._opened.enter_context(zipfile.ZipFile(io.BytesIO(_EMPTY_ZIP)))
            archive.fp = file  # its directory is known: to read it for each member takes hours
            stream = cast(BufferedIOBase, self._opened.enter_context(archive.open(info)))
            start = stream.peek(3)[:3]  # type: ignore[attr-defined]
        else:
            start = file.peek(3)[:3]
            if self._pieces is not None and start[:2] == _GZIP and is_local(path):
                stream = BufferedReader(_Pieces(file, self._pieces(file)))
        for mark, encoding in _MARKED.items():
            if start.startswith(mark):
                stream = BufferedReader(_Recoded(stream, encoding))
        return (_open_gzip(fileobj=stream) if start[:2] == _GZIP else stream), nbytes, on_disk


def _largest(nbytes: int) -> int:
    return max(_HARMLESS_BYTES, LARGEST_EXPANSION * nbytes)


def _bomb(path: Path) -> TraceError:
    return TraceError(
        f"{path}: expands to more than {LARGEST_EXPANSION} times its size on disk, the "
        "limit; unpack it yourself if you trust it"
    )


class _DirectoryFile(BufferedReader):
    """A zip of which only the directory is read: at once, however large the file says it is."""

    def read(self, size: int | None = -1, /) -> bytes:
        most = _LARGEST_DIRECTORY_BYTES + 1
        data = super().read(most if size is None or size < 0 else min(size, most))
        if len(data) == most:
            raise zipfile.BadZipFile("its directory is too large")
        return data


@lru_cache(maxsize=_MOST_ARCHIVES)
def _directory(path: Path, _status: FileStatus) -> dict[str, zipfile.ZipInfo]:
    """Return the files in a zip by their names."""
    with _DirectoryFile(open_input(path).detach()) as file, zipfile.ZipFile(file) as archive:
        # A member without a name has no last letter for `is_dir` to look at.
        infos = [info for info in archive.infolist() if info.filename and not info.is_dir()]
    return {info.filename: info for info in infos}


def read_start(path: Path, size: int) -> bytes:
    """Read the first `size` bytes.

    Raises:
        TraceError: the file cannot be opened.
    """
    with Source(path) as source:
        return source.read(size)


def check_damage(where: str, broken: int, whole: int) -> None:
    """Give up on a file of which most is broken; `broken` and `whole` count its parts so far.

    Raises:
        TraceError: it is such a file.
    """
    if broken > max(_MOST_BROKEN, whole):
        raise TraceError(
            f"{where}: {broken:,} of the first {broken + whole:,} events are damaged, so the rest "
            "is not read; copy or export the file again"
        )


def size_of(path: Path) -> int:
    """Return the size on disk of a trace file, or of the archive that holds it.

    Raises:
        TraceError: it is gone.
    """
    try:
        return inputs.size_of(file_of(path))
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None


def length_of(path: Path) -> int:
    """Return how many bytes a trace file holds, unpacked, by way of all of them if it is packed.

    0 for a file that cannot be opened, or expands to more than any trace does.
    """
    with suppress(TraceError), Source(path) as source:
        if source.is_plain:
            return source.nbytes
        return sum(map(len, iter(lambda: source.read(_BLOCK_BYTES), b"")))
    return 0


def file_of(path: Path) -> Path:
    """Return the file on disk or object of a store that has a trace: it, or its archive."""
    return _split(path)[0]


def is_there(path: Path) -> bool:
    """Say whether a file exists, or the archive that is to hold it."""
    return inputs.exists(file_of(path))


def is_readable(path: Path) -> bool:
    """Say whether a file exists, or is in an archive that can be opened."""
    archive, member = _split(path)
    if not member:
        return inputs.exists(archive)
    with suppress(*_UNUSABLE), open_input(archive) as file:
        return member in _directory(archive, status_of(file))
    return False


def is_zip(path: Path) -> bool:
    """Say whether a file is a zip archive; false if it cannot be read.

    On a store the name tells: there each look costs a request.
    """
    if not is_local(path) and path.suffix != ".zip":
        return False
    try:
        with open_input(path) as file:
            return file.read(4) == _ZIP
    except OSError:
        return False


def members(path: Path) -> list[Path]:
    """Return the files inside a zip, as paths that `Source` opens.

    Raises:
        TraceError: the zip is damaged, or a name in it would lead out of it.
    """
    try:
        with open_input(path) as file:
            status = status_of(file)
            infos = list(_directory(path, status).values())
    except _UNUSABLE as error:
        raise TraceError(f"{path}: a damaged zip: {error}") from None
    if len(infos) > _MOST_MEMBERS:
        raise TraceError(f"{path}: a zip of {len(infos):,} files is not a run")
    if sum(info.file_size for info in infos) > _largest(status.nbytes_on_disk):
        raise _bomb(path)
    names = [info.filename for info in infos]
    if strange := [name for name in names if _leads_out(name)]:
        raise TraceError(f"{path}: a name in the zip leads out of it: {strange[0]}")
    return [path / name for name in names]


def _leads_out(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return not parts or parts[0] == "/" or ".." in parts or "\\" in name or "\0" in name


def _split(path: Path) -> tuple[Path, str]:
    """Split `run.zip/rank0.json` into the archive and the name in it, "" for a plain file."""
    if is_local(path) and os.path.exists(path):
        return path, ""
    for archive in path.parents:
        if os.path.isfile(archive) if is_local(path) else archive.suffix == ".zip":
            return archive, PurePosixPath(*path.parts[len(archive.parts) :]).as_posix()
    return path, ""
