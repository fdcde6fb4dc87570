"""An S3 server, and a bad web server, on 127.0.0.1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

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


def answering(status: str, kind: str, body: bytes) -> Callable[..., Iterable[bytes]]:
    """Return an application that answers everything alike."""

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        start(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    return application
