"""The server: who gets a page, and what happens to those who should not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse
from threading import Thread
from urllib.parse import urlsplit

import pytest

from dsprof.live import http
from dsprof.live.http import Server


@pytest.fixture
def server() -> Iterator[Server]:
    pages = {"/": b"<!doctype html>report", "/steps": b"steps"}
    with Server(0, pages.get) as made:
        thread = Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_only_the_first_page_of_a_run_that_goes_on_is_loaded_again(server: Server) -> None:
    name = cookie(server)
    assert ask(server, "/", Cookie=name).headers["Refresh"] is None
    server.changes = lambda: True
    assert ask(server, "/", Cookie=name).headers["Refresh"] == "10"
    assert ask(server, "/steps", Cookie=name).headers["Refresh"] is None


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> HTTPResponse:
    """Ask as a browser would, but for the headers given."""
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    response.body = response.read()
    return response


def entry(server: Server) -> str:
    """The path and token of the address that is printed."""
    found = urlsplit(server.gate.address)
    return f"{found.path}?{found.query}"


def cookie(server: Server) -> str:
    return ask(server, entry(server)).headers["Set-Cookie"].partition(";")[0]


def test_the_token_is_exchanged_for_a_cookie_and_the_cookie_for_pages(server: Server) -> None:
    first = ask(server, entry(server))
    assert (first.status, first.headers["Location"]) == (303, "/")
    name, *marks = first.headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(marks)
    page = ask(server, "/", Cookie=name)
    assert (page.status, page.body) == (200, b"<!doctype html>report")
    assert page.headers["Referrer-Policy"] == "no-referrer"
    assert page.headers["Cache-Control"] == "no-store"
    assert server.gate.address.encode() not in page.body
    assert ask(server, entry(server), Cookie=name).status == 200  # the page is reloaded


def test_a_token_works_once(server: Server) -> None:
    address = entry(server)
    assert ask(server, address).status == 303
    again = ask(server, address)
    assert (again.status, again.headers["Set-Cookie"]) == (403, None)


@pytest.mark.parametrize(
    "path", ["/", "/steps", "/?token=", "/?token=guess", "/?token=gu%C3%A9%00"]
)
def test_without_the_token_nothing_is_answered(server: Server, path: str) -> None:
    refused = ask(server, path)
    assert refused.status == 403
    assert b"report" not in refused.body
    wrong = ask(server, "/", Cookie=f'dsprof-{server.server_port}=guess; a="')
    assert wrong.status == 403
    assert ask(server, entry(server)).status == 303  # a wrong guess does not spend it


@pytest.mark.parametrize(
    "host", ["attacker.example", "127.0.0.1", "127.0.0.1.attacker.example", ""]
)
def test_a_name_that_resolves_to_this_machine_is_refused(server: Server, host: str) -> None:
    known = cookie(server)
    named = f"{host}:{server.server_port}" if "attacker" in host else host
    assert ask(server, "/", Host=named, Cookie=known).status == 421
    assert ask(server, "/", Host=f"localhost:{server.server_port}", Cookie=known).status == 200


def test_a_token_is_not_spent_under_a_foreign_name(server: Server) -> None:
    assert ask(server, entry(server), Host="attacker.example").status == 421
    assert ask(server, entry(server)).status == 303


@pytest.mark.parametrize("origin", ["http://attacker.example", "null", "https://127.0.0.1", ""])
def test_requests_of_other_pages_are_refused(server: Server, origin: str) -> None:
    known = cookie(server)
    assert ask(server, "/", Origin=origin, Cookie=known).status == 421
    own = f"http://127.0.0.1:{server.server_port}"
    assert ask(server, "/", Origin=own, Cookie=known).status == 200


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/%2e%2e/etc/passwd", "//etc/passwd", "/steps/..", "/nothing", "x"],
)
def test_there_is_nothing_but_pages(server: Server, path: str) -> None:
    assert ask(server, path, Cookie=cookie(server)).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT"])
def test_it_is_read_only(server: Server, method: str) -> None:
    assert ask(server, "/", method, Cookie=cookie(server)).status in (404, 405, 501)


def test_head_has_no_body(server: Server) -> None:
    answer = ask(server, "/", "HEAD", Cookie=cookie(server))
    assert (answer.status, answer.body) == (200, b"")


def raw(server: Server, sent: bytes) -> bytes:
    """Send bytes, and return all that comes until the server closes."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as connection:
        with suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(sent)
        received = b""
        with suppress(ConnectionResetError):
            while more := connection.recv(1 << 16):
                received += more
        return received


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % n for n in range(100_000)) + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"\x16\x03\x01\x00\xff" * 100 + b"\r\n\r\n",
        b"GET\r\n\r\n",
    ],
    ids=["long line", "many headers", "two hosts", "TLS", "half a line"],
)
def test_a_request_of_no_browser_gets_no_page(server: Server, sent: bytes) -> None:
    assert b" 200 " not in raw(server, sent)
    assert ask(server, "/", Cookie=cookie(server)).status == 200  # and the server goes on


def test_a_slow_client_is_dropped(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.2)
    assert raw(server, b"GET / HTTP/1.1\r\nHost: ") == b""


def test_many_open_connections_leave_the_server_alive(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 1)
    known = cookie(server)
    address = ("127.0.0.1", server.server_port)
    held = [socket.create_connection(address, timeout=30) for _ in range(3 * http.REQUESTS)]
    for connection in held:  # each is closed: at once where too many are open, else after a second
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""
        connection.close()
    assert ask(server, "/", Cookie=known).status == 200
