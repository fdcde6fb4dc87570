"""Servers that bound time, size and number of requests; one serves pages to one reader."""

from __future__ import annotations

import socket
from collections.abc import Callable
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedReader, RawIOBase
from socketserver import TCPServer
from threading import BoundedSemaphore
from time import monotonic
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dsprof.errors import DsprofError
from dsprof.files.redaction import redact_text
from dsprof.live.gate import Gate

REQUEST_BYTES = 1 << 14
REQUEST_SECONDS = 10
RESPONSE_SECONDS = 60
_AGAIN_S = "10"

REQUESTS = 16
"""This many requests are served at once: a browser sends a few; more only hold connections open."""

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the rest is in each page
    "Content-Type": "text/html; charset=utf-8",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

Pages = Callable[[str], bytes | None]
"""Returns the page at a path; None where there is none."""


class BoundedServer(ThreadingHTTPServer):
    """Answers a few requests at once, each in a thread of its own."""

    daemon_threads = True  # Ctrl-C waits for no reader
    request_queue_size = REQUESTS

    def __init__(self, address: tuple[str, int], handler: type[BoundedHandler]) -> None:
        """Listen on an address."""
        super().__init__(address, handler)
        self._free = BoundedSemaphore(REQUESTS)

    def server_bind(self) -> None:
        """Bind, and look up no name."""
        TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, unless too many are busy."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of readers that went away."""


class BoundedHandler(BaseHTTPRequestHandler):
    """Takes requests up to a size and a time."""

    server_version, sys_version = "dsprof", ""

    def setup(self) -> None:
        """Bound what is read."""
        super().setup()
        self.rfile = BufferedReader(_Request(self.connection))

    def log_message(self, *_: Any) -> None:
        """Log nothing: lines of requests may hold a token."""


class Server(BoundedServer):
    """Serves pages on 127.0.0.1 to whoever holds the session of its gate."""

    def __init__(
        self, port: int, pages: Pages, changes: Callable[[], bool] = lambda: False
    ) -> None:
        """Serve `pages`; the first one asks to be loaded again while it `changes`."""
        super().__init__(("127.0.0.1", port), _Handler)
        self.pages, self.changes = pages, changes
        self.gate = Gate(self.server_port)


class _Handler(BoundedHandler):
    server: Server

    def do_GET(self) -> None:
        """Answer with a page, or refuse."""
        self.connection.settimeout(RESPONSE_SECONDS)
        address, gate = urlsplit(self.path), self.server.gate
        if not gate.is_addressed(self.headers):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "This server answers to 127.0.0.1 only.")
        elif gate.is_open(self.headers):
            self._show(address.path)
        elif cookie := gate.open("".join(parse_qs(address.query).get("token", []))):
            self._send(HTTPStatus.SEE_OTHER, b"", {"Set-Cookie": cookie, "Location": "/"})
        else:
            text = "Open the address that dsprof serve printed. It works once: to open the page "
            self._refuse(HTTPStatus.FORBIDDEN, f"{text}in another browser, start it again.")

    do_HEAD = do_GET  # noqa: N815 - the name that the base class looks for

    def _show(self, path: str) -> None:
        try:
            page = self.server.pages(path)
        except DsprofError as error:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, redact_text(str(error)))
            return
        if page is None:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such page.")
        else:
            again = path == "/" and self.server.changes()
            self._send(HTTPStatus.OK, page, {"Refresh": _AGAIN_S} if again else None)

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self._send(status, f"<!doctype html><title>dsprof</title><p>{escape(text)}</p>".encode())

    def _send(self, status: HTTPStatus, body: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (_HEADERS | (more or {})).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Request(RawIOBase):
    """The request of a client, up to a size and a moment: it cannot keep a thread for longer."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._left_bytes = REQUEST_BYTES
        self._until = monotonic() + REQUEST_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what has come.

        Raises:
            TimeoutError: the request takes too long, or is too long.
        """
        left_seconds = self._until - monotonic()
        if left_seconds <= 0 or not self._left_bytes:
            raise TimeoutError
        self._connection.settimeout(left_seconds)
        size = self._connection.recv_into(buffer, min(len(buffer), self._left_bytes))
        self._left_bytes -= size
        return size
