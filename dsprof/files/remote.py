"""Files on object stores and web servers, by fsspec: read in ranges, no more than is needed.

Of an error only its kind is passed on: what stores write into it may quote credentials.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from io import BufferedReader, RawIOBase
from pathlib import Path, PosixPath
from typing import Any, NamedTuple

_ADDRESS = r"(?i)([a-z][a-z0-9+.:-]{1,60})://([^/]*)"
_HOST = r"(?i)(\[[0-9a-f:.]*\]|[^:@\[\]]*)(:\d{1,5})?"
_CHAIN = "::"
"""fsspec opens a place inside another by it, such as `zip://a::https://user:password@host/b`."""
_AZURE = r"[^:@]+@[^:@]+"  # the container, then the account
_WEB, _S3, _LOCAL = ("http", "https"), ("s3", "s3a"), ("file", "local")
_HDFS, _DEFAULT_CLUSTER = "hdfs", "default"
"""libhdfs calls the cluster that Hadoop's configuration names `default`; users name none."""
_PACKAGES = {
    **dict.fromkeys(_WEB, "aiohttp requests"),
    **dict.fromkeys(_S3, "'dsprof[remote]'"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "az"), "adlfs"),
    _HDFS: "pyarrow",
    "webhdfs": "requests",
}
"""The package that a store needs; for stores that are not listed, fsspec names it."""

_NO_RANGES = "the server supports no range requests; download the file"

MOST_AT_ONCE = 16
"""Requests of a process to a store: hundreds of ranks then take seconds, and none is refused."""

_ANSWER_S = 10
_TRIES = 2

_START_BYTES = 1 << 17
_LARGEST_READ_BYTES = 1 << 23
_KEPT_STARTS = 64
_BUFFER_BYTES = 1 << 16

_NO_OBJECT = "no such object"
_UNREACHABLE = "the store cannot be reached; check network, address, endpoint and region"
_KINDS = {
    _NO_OBJECT: ("FileNotFoundError", "NotADirectoryError"),
    "access denied; log in to the store, or set its credentials in the environment": (
        "PermissionError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "ProfileNotFound",
        "SSOError",
        "TokenRetrievalError",
    ),
    "it changed while it was read; repeat the command": ("FileExpired",),
    "the server redirects in a circle; check the address, and whether it asks for a login": (
        "TooManyRedirects",
    ),
    "the connection broke off; try again": (
        "ClientPayloadError",
        "IncompleteReadError",
        "ResponseStreamingError",
        "ChunkedEncodingError",
        "PayloadEncodingError",  # of aiohttp, one of the errors below
    ),
    "the answers of the server are not valid HTTP; download the file": ("HttpProcessingError",),
    "no answer in time; try again": ("TimeoutError", "ReadTimeoutError", "FSTimeoutError"),
    _UNREACHABLE: (
        "ConnectionError",
        "ClientConnectionError",
        "HTTPClientError",
        "gaierror",
        "InvalidRegionError",
        "NoRegionError",
    ),
}
_HDFS_KINDS = {
    _NO_OBJECT: "no such object, or the NameNode does not answer",
    "reading failed (OSError)": "reading failed; set CLASSPATH to what `hadoop classpath --glob` "
    "prints and HADOOP_HOME to Hadoop's folder, and check that the NameNode answers",
}
"""libhdfs tells these causes apart only in what Java prints, if it was loaded at all."""
_VERSIONS = (
    *("ETag", "etag", "generation", "LastModified", "Last-Modified"),
    *("mtime", "modified", "modificationTime"),
)
_STATUSES: dict[Any, str] = {
    401: "PermissionError",
    403: "PermissionError",
    404: "FileNotFoundError",
    412: "FileExpired",
}
_TOO_MANY, _FAILING = 429, 500
"""After these statuses, and all above the second, a server may answer a later request."""


class RemoteError(OSError):
    """An object that cannot be read, or no longer."""


class RemotePath(PosixPath):
    """An address such as `s3://bucket/run`, which no function of this machine's files knows."""

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)

    @property
    def scheme(self) -> str:
        """What is before `://`."""
        return self.parts[0].removesuffix(":")

    def absolute(self) -> RemotePath:
        """Return the address: it is the same everywhere."""
        return self


def is_address(text: str) -> bool:
    """Say whether a text is an address, not the name of a local file."""
    return re.match(_ADDRESS, text) is not None


def address(text: str) -> RemotePath:
    """Return an address that a user gave.

    Raises:
        ValueError: it contains credentials, which are not repeated, or cannot be read.
    """
    found = re.match(_ADDRESS, text)
    assert found is not None
    if _CHAIN in text:
        raise ValueError(f"an address with {_CHAIN} is not read; give that of a file or folder")
    scheme, host = found[1].lower(), found[2]
    is_container = scheme.startswith("abfs") and re.fullmatch(_AZURE, host)
    if not (re.fullmatch(_HOST, host) or is_container):
        raise ValueError(
            f"an address of {scheme}:// that contains credentials is not read, because other users "
            "of this machine can see it; set the credentials in the environment"
        )
    if scheme in _WEB and ("?" in text or "#" in text):
        raise ValueError(
            f"an address of {scheme}:// with a query or signature is not read; download the file"
        )
    if scheme in _LOCAL:
        raise ValueError(f"{scheme}:// is not read: give the path of a local file without it")
    if scheme == _HDFS and not host:
        host = _DEFAULT_CLUSTER
    return RemotePath(f"{scheme}://{host}{text[found.end() :]}")


class RemoteStatus(NamedTuple):
    """What a store says of an object; `version` is another once it has changed, "": unknown."""

    is_folder: bool
    nbytes: int
    version: str


Answer = RemoteStatus | RemoteError
"""What a store says when it is asked for an object."""

_known: dict[Path, Answer] = {}


@contextmanager
def known(answers: Mapping[Path, Answer]) -> Iterator[None]:
    """Ask no store for these objects again."""
    _known.update(answers)
    try:
        yield
    finally:
        for path in answers:
            _known.pop(path, None)


def look(path: RemotePath) -> Answer:
    """Ask the store for the status of an object, and for its start, which is kept."""
    try:
        status = _asked(path)
    except RemoteError as error:
        return error
    with suppress(RemoteError):  # whoever reads it meets the error
        if status.version and status.nbytes:
            _start(path, status)
    return status


def takes_many(path: RemotePath) -> bool:
    """Say whether the client of a store sends requests while it waits for others."""
    from fsspec import get_filesystem_class

    with suppress(ImportError, ValueError):
        return bool(get_filesystem_class(path.scheme).async_impl)
    return False


def status_of(path: RemotePath) -> RemoteStatus:
    """Ask the store, unless its answer is known.

    Raises:
        OSError: there is no such object, or the store does not tell.
    """
    answer = _known.get(path) or _asked(path)
    if isinstance(answer, RemoteError):
        raise answer.with_traceback(None)
    return answer


def _asked(path: RemotePath) -> RemoteStatus:
    with _told(path):
        system, name = _system(path)
        info = system.info(name)
    if path.scheme in _WEB:
        if info.get("mimetype") == "text/html":
            return RemoteStatus(True, 0, "")
        if info["size"] is None or info.get("partial") is False:
            raise RemoteError(errno.EINVAL, _NO_RANGES, str(path))
    return RemoteStatus(info["type"] == "directory", int(info["size"] or 0), _version(info))


def _version(info: dict[str, Any]) -> str:
    return next((str(info[name]) for name in _VERSIONS if info.get(name)), "")


def entries(path: RemotePath) -> list[RemotePath]:
    """List a folder anew; names that lead out of it are left out.

    Raises:
        OSError: it cannot be listed.
    """
    with _told(path):
        system, name = _system(path)
        system.invalidate_cache(name)
        found = [entry["name"] for entry in system.ls(name.rstrip("/") + "/", detail=True)]
    start = name.strip("/") + "/"
    inside = (one.strip("/") for one in found)
    names = {one.removeprefix(start).removeprefix("./") for one in inside if one.startswith(start)}
    names = {one for one in names if _CHAIN not in one}
    if path.scheme in _WEB:
        names = {one for one in names if not set(one) & set("?#")}
        if not names:
            raise RemoteError(
                errno.ENOENT,
                "the server answers with a page that lists no files; check the address, and "
                "whether it asks for a login",
                str(path),
            )
    return sorted(path / one for one in names if "/" not in one and one not in ("", ".", ".."))


def open_object(path: RemotePath) -> BufferedReader:
    """Open an object for reading.

    Raises:
        OSError: it cannot be opened.
    """
    status = status_of(path)
    if status.is_folder:
        what = "the server answers with an HTML page" if path.scheme in _WEB else "a folder"
        raise RemoteError(errno.EISDIR, what, str(path))
    return BufferedReader(Ranges(path, status), _BUFFER_BYTES)


class Ranges(RawIOBase):
    """An object, read in ranges that grow: its start costs little, and all of it few requests."""

    def __init__(self, path: RemotePath, status: RemoteStatus) -> None:
        self._path = path
        self.status = status
        self._file: Any = None
        self._at = 0
        self._window = memoryview(b"")
        self._from = 0
        self._size = _START_BYTES

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read from anywhere."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        self._at = max(offset + (0, self._at, self.status.nbytes)[whence], 0)
        return self._at

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def readinto(self, into: Any) -> int:
        """Read what is at hand, or the next range."""
        if self._at >= self.status.nbytes:
            return 0
        if not self._from <= self._at < self._from + len(self._window):
            self._fetch(len(into))
        part = self._window[self._at - self._from :][: len(into)]
        into[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _fetch(self, wanted: int) -> None:
        is_next = self._window and self._at == self._from + len(self._window)
        self._size = min(2 * self._size, _LARGEST_READ_BYTES) if is_next else _START_BYTES
        if self._at == 0 and self.status.version:
            data = _start(self._path, self.status)
        else:
            data = self._range(self._at, max(self._size, wanted))
        self._from, self._window = self._at, memoryview(data)

    def _range(self, start: int, size: int) -> bytes:
        size = min(size, self.status.nbytes - start)
        with _told(self._path):
            if self._file is None:
                self._file = _open(self._path, self.status)
            self._file.seek(start)
            data: bytes = self._file.read(size)
        return _whole(self._path, data, size)

    def close(self) -> None:
        """Close it."""
        if self._file is not None:
            self._file.close()
        super().close()


@lru_cache(maxsize=_KEPT_STARTS)
def _start(path: RemotePath, status: RemoteStatus) -> bytes:
    """Return the start of an object, which several questions about it need.

    If it has changed since, `_open` says so before more of it is read.
    """
    size = min(_START_BYTES, status.nbytes)
    # Web servers may send more than was asked for, and fsspec seeks in a stream of hdfs://.
    if path.scheme in _WEB or not takes_many(path):
        with Ranges(path, status) as whole:
            return whole._range(0, size)
    with _told(path):
        system, name = _system(path)
        data: bytes = system.cat_file(name, start=0, end=size)
    return _whole(path, data, size)


def _whole(path: RemotePath, data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise _changed(path)
    return data


def _open(path: RemotePath, status: RemoteStatus) -> Any:
    """Open an object in the version that was asked for.

    Raises:
        RemoteError: it is another one by now.
    """
    system, name = _system(path)
    options = {}
    if path.scheme in _WEB and status.version.startswith('"'):  # an ETag that names bytes
        options["headers"] = {"If-Match": status.version}
    file = system.open(name, "rb", cache_type="none", **options)
    # Files of memory://, sftp:// and hdfs:// do not say what their stores said of them.
    details = getattr(file, "details", None) or system.info(name)
    is_other = _version(details) not in ("", status.version)
    if is_other or getattr(file, "size", details["size"]) != status.nbytes:
        raise _changed(path)
    return file


def _system(path: RemotePath) -> tuple[Any, str]:
    """Return the file system of an address, and what that calls the object."""
    from fsspec.core import url_to_fs

    system, name = url_to_fs(str(path), **_options(path.scheme))
    if path.scheme in _S3:
        system.retries = _TRIES
    return system, name


def _options(scheme: str) -> dict[str, Any]:
    """Return options by which a silent server is given up within two minutes, not after twenty.

    Web servers may not compress: ranges are of the plain file, and a small answer fills no memory.
    """
    if scheme in _S3:
        waits = {"connect_timeout": _ANSWER_S, "read_timeout": _ANSWER_S}
        limits = {"retries": {"max_attempts": _TRIES - 1}, "max_pool_connections": MOST_AT_ONCE}
        return {"config_kwargs": {**waits, **limits}}
    if scheme in _WEB:
        from aiohttp import ClientTimeout

        waits = {"sock_connect": _ANSWER_S, "sock_read": _ANSWER_S}
        timeout, plain = ClientTimeout(total=None, **waits), {"Accept-Encoding": "identity"}
        return {"client_kwargs": {"timeout": timeout, "headers": plain, "auto_decompress": False}}
    return {}


def _changed(path: RemotePath) -> RemoteError:
    return RemoteError(errno.EBUSY, "it changed while it was read; repeat the command", str(path))


@contextmanager
def _told(path: RemotePath) -> Iterator[None]:
    """Say in one clause what went wrong.

    Raises:
        RemoteError: something did.
    """
    try:
        yield
    except RemoteError:
        raise
    except ImportError as error:
        package = _PACKAGES.get(path.scheme)
        why = f"a package is missing: {f'pip install {package}' if package else error}"
        raise RemoteError(errno.ENOPKG, why, str(path)) from None
    except Exception as error:  # noqa: BLE001 - each store has errors of its own
        reason = _reason(error)
        number = errno.ENOENT if reason == _NO_OBJECT else errno.EIO
        if path.scheme == _HDFS:
            reason = _HDFS_KINDS.get(reason, reason)
        raise RemoteError(number, reason, str(path)) from None


def _reason(error: Exception) -> str:
    cause = error.__cause__  # fsspec calls whatever a web server says "not found"
    for one in (getattr(cause, "__cause__", None), cause, error):  # aiohttp gives all a status
        status = _status(one)
        names = {kind.__name__ for kind in type(one).__mro__} | {_STATUSES.get(status, "")}
        for reason, kinds in _KINDS.items():
            if names.intersection(kinds):
                return reason
        if isinstance(status, int):
            is_passing = status == _TOO_MANY or status >= _FAILING
            remedy = "try again later" if is_passing else "check address, region and credentials"
            return f"the server answers with status {status}; {remedy}"
    if isinstance(error, ValueError) and "Protocol" in str(error):
        return "unknown scheme"
    if isinstance(error, ValueError) and "endpoint" in str(error):
        return _UNREACHABLE
    if isinstance(error, ValueError) and "range requests" in str(error):
        return _NO_RANGES
    return f"reading failed ({type(error).__name__})"


def _status(error: BaseException | None) -> Any:
    """Return the status that a server answered with; None where there is none."""
    response = getattr(error, "response", None)  # of boto a dict, of requests an object
    if isinstance(response, dict):
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return getattr(error, "status", getattr(response, "status_code", None))
