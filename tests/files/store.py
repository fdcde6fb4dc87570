"""An S3 server, a WebHDFS server, and a bad web server, on 127.0.0.1."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

SECRET = "wJalrXUtnFEMIverysecret"


class Request(NamedTuple):
    """A request that a server answered."""

    method: str
    path: str
    nbytes: int  # of the answer


class Store:
    """A bucket, and what was asked of its server."""

    def __init__(self, endpoint: str, requests: list[Request]) -> None:
        import s3fs

        self.endpoint, self.requests = endpoint, requests
        self.files = s3fs.S3FileSystem()

    def fill(self, folder: Path, name: str = "run") -> str:
        """Upload the files of a folder; return the address of the copy."""
        for file in folder.iterdir():
            self.put(f"{name}/{file.name}", file.read_bytes())
        self.requests.clear()
        return f"s3://bucket/{name}"

    def put(self, name: str, data: bytes) -> None:
        """Write an object past all that this process has cached of it."""
        self.files.call_s3("put_object", Bucket="bucket", Key=name, Body=data)

    def delete(self, name: str) -> None:
        """Delete an object, likewise."""
        self.files.call_s3("delete_object", Bucket="bucket", Key=name)

    def reads(self) -> dict[str, int]:
        """Return the bytes that were read of each object."""
        found: dict[str, int] = {}
        for one in self.requests:
            if one.method == "GET" and one.path.startswith("/bucket/"):
                name = one.path.removeprefix("/bucket/")
                found[name] = found.get(name, 0) + one.nbytes
        return found


@contextmanager
def serving(application: Callable[..., Iterable[bytes]]) -> Iterator[tuple[str, list[Request]]]:
    """Serve an application; yield its address, and the list of requests."""
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, *_: object) -> None:
            pass

    requests: list[Request] = []

    def counted(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        body = b"".join(application(environ, start))
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        requests.append(Request(method, path, len(body)))
        return [body]

    server = make_server("127.0.0.1", 0, counted, threaded=True, request_handler=Quiet)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answering(
    status: str, kind: str, body: bytes, **headers: str
) -> Callable[..., Iterable[bytes]]:
    """Return an application that answers everything alike."""

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        length = str(len(body))
        start(status, [("Content-Type", kind), ("Content-Length", length), *headers.items()])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    return application


def refusing(root: Path, ending: str, status: str) -> Callable[..., Iterable[bytes]]:
    """Return an application that serves a folder, but not the objects whose names end so."""

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        name = environ["PATH_INFO"].strip("/")
        if name.endswith(ending):
            start(status, [])
            return []
        if not (root / name).exists():
            start("404 Not Found", [])
            return []
        if not name:
            start("200 OK", [("Content-Type", "text/html")])
            return [b"".join(b'<a href="%s"></a>' % os.fsencode(x.name) for x in root.iterdir())]
        data, headers = (root / name).read_bytes(), [("Accept-Ranges", "bytes")]
        if asked := environ.get("HTTP_RANGE"):
            begin, end = map(int, asked.removeprefix("bytes=").split("-"))
            headers.append(("Content-Range", f"bytes {begin}-{end}/{len(data)}"))
            data = data[begin : end + 1]
        headers.append(("Content-Length", str(len(data))))
        start("206 Partial Content" if asked else "200 OK", headers)
        return [data]

    return application


def webhdfs(root: Path) -> Callable[..., Iterable[bytes]]:
    """Return an application that serves a folder as HDFS does: data nodes have the bytes."""

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        name = environ["PATH_INFO"].removeprefix("/webhdfs/v1")
        asked = dict(parse_qsl(environ["QUERY_STRING"]))
        path = root / name.strip("/")
        if name == "/data":
            begin, size = int(asked["offset"]), int(asked["length"])
            start("200 OK", [("Content-Type", "application/octet-stream")])
            return [(root / asked["path"]).read_bytes()[begin : begin + size]]
        if not path.exists():
            status, answer = "404 Not Found", _exception("FileNotFoundException", SECRET)
        elif asked["op"] == "GETFILESTATUS":
            status, answer = "200 OK", {"FileStatus": _hdfs_status(path, "")}
        elif asked["op"] == "LISTSTATUS":
            found = [_hdfs_status(one, one.name) for one in path.iterdir()]
            status, answer = "200 OK", {"FileStatuses": {"FileStatus": found}}
        else:
            host, part = environ["HTTP_HOST"], f"offset={asked['offset']}&length={asked['length']}"
            there = f"http://{host}/data?path={path.relative_to(root)}&{part}"
            start("307 Temporary Redirect", [("Location", there)])
            return []
        start(status, [("Content-Type", "application/json")])
        return [json.dumps(answer).encode()]

    return application


def _hdfs_status(path: Path, suffix: str) -> dict[str, Any]:
    status = os.stat(path)
    return {
        "type": "DIRECTORY" if path.is_dir() else "FILE",
        "length": status.st_size,
        "modificationTime": status.st_mtime_ns // 1_000_000,
        "pathSuffix": suffix,
    }


def _exception(name: str, message: str) -> dict[str, Any]:
    return {"RemoteException": {"exception": name, "message": message}}
