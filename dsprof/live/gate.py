"""Who may ask: only the browser in which the address printed at the start was opened.

Every program and every web page that this machine shows can reach a port of 127.0.0.1. So a name
that resolves to it is refused (DNS rebinding), so is a request that another page makes, and
nothing is answered without the cookie that the address's token buys, once.
"""

from __future__ import annotations

import secrets
from email.message import Message
from http.cookies import CookieError, SimpleCookie
from threading import Lock


class Gate:
    """The token, the session it opens, and the names under which this server may be asked."""

    def __init__(self, port: int) -> None:
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self._cookie = f"dsprof-{port}"  # cookies of one host are shared by all its ports
        self._token = secrets.token_urlsafe(32)
        self._session = secrets.token_urlsafe(32)
        self._lock = Lock()
        self.address = f"http://127.0.0.1:{port}/?token={self._token}"

    def is_addressed(self, headers: Message) -> bool:
        """Say whether a request names this server, and no other page makes it."""
        hosts, origins = headers.get_all("Host", []), headers.get_all("Origin", [])
        ours = {f"http://{host}" for host in self._hosts}
        return len(hosts) == 1 and hosts[0].lower() in self._hosts and ours.issuperset(origins)

    def is_open(self, headers: Message) -> bool:
        """Say whether a request has the cookie of the session."""
        try:
            found = SimpleCookie("; ".join(headers.get_all("Cookie", []))).get(self._cookie)
        except CookieError:
            return False
        return found is not None and _equal(found.value, self._session)

    def open(self, token: str) -> str:
        """Return the cookie to set for the token; "" for a wrong one, and for its second use."""
        with self._lock:
            if not self._token or not _equal(token, self._token):
                return ""
            self._token = ""
        return f"{self._cookie}={self._session}; HttpOnly; SameSite=Strict; Path=/"


def _equal(given: str, expected: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), expected.encode())
