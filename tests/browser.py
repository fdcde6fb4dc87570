"""A headless Chromium, driven over its debugging pipe with the standard library alone.

Speaks the Chrome DevTools Protocol: JSON messages, each ended by a zero byte.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EXECUTABLE = shutil.which("chromium") or shutil.which("google-chrome")

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # of no use to a page that we wrote, and not to be had by root
    "--no-first-run",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)


class BrowserError(Exception):
    """Chromium refused a command, or did not answer."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser with an empty profile; it is gone when the block ends."""
    assert EXECUTABLE is not None
    commands_out, commands_in = _high_pipe()
    answers_out, answers_in = _high_pipe()

    def place() -> None:
        os.dup2(commands_out, 3)  # the protocol reads from 3 and writes to 4
        os.dup2(answers_in, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [EXECUTABLE, *_FLAGS, f"--user-data-dir={profile}"],
            preexec_fn=place,
            close_fds=False,  # Python's own descriptors close themselves
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands_out)
        os.close(answers_in)
        try:
            yield Browser(commands_in, answers_out)
        finally:
            process.terminate()
            process.wait(30)
            os.close(commands_in)
            os.close(answers_out)


def _high_pipe() -> tuple[int, int]:
    """A pipe (read, write) whose descriptors are not in the way of 3 and 4."""
    low = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)
    for end in low:
        os.close(end)
    return read, write


class Browser:
    """The connection; opens pages."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._buffer = b""
        self._last_id = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer, keeping the events in between."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result

    def receive(self, seconds: float = 60) -> dict[str, Any]:
        """Wait for one message; an event is kept too."""
        while b"\0" not in self._buffer:
            if not select.select([self._answers], [], [], seconds)[0]:
                raise BrowserError(f"no answer within {seconds} s")
            chunk = os.read(self._answers, 1 << 20)
            if not chunk:
                raise BrowserError("Chromium ended")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, place: Path | str, **view: Any) -> Page:
        """Open a file or an address in a new page, and return after its load.

        `view` is passed to `Page.view`.
        """
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.view(**view)
        page.go(place if isinstance(place, str) else place.resolve().as_uri())
        return page


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command to this tab."""
        return self._browser.call(method, self._session, **params)

    def go(self, address: str) -> None:
        """Load another address."""
        self._browser.events.clear()
        self.call("Page.navigate", url=address)
        self.wait_event("Page.loadEventFired")

    def view(self, width: int = 1280, dark: bool = False, scripts: bool = True) -> None:
        """Set width, colour scheme, and whether the page's scripts run."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)

    def wait_event(self, method: str) -> None:
        """Wait until this event has come since the page was opened."""
        while not any(event["method"] == method for event in self._browser.events):
            self._browser.receive()

    def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression; a promise is awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 60) -> float:
        """Wait until an expression is true; seconds that it took, as seen by the page's frames."""
        start = time.monotonic()
        while not self._is_true(expression):
            if time.monotonic() - start > seconds:
                raise BrowserError(f"not true within {seconds} s: {expression}")
        return time.monotonic() - start

    def _is_true(self, expression: str) -> bool:
        """Ask in the next frame; while a page gives way to another one, nothing is true."""
        try:
            return bool(
                self.evaluate(
                    f"new Promise(f => requestAnimationFrame(() => f(Boolean({expression}))))"
                )
            )
        except BrowserError as error:
            if "navigated or closed" not in str(error):
                raise
            return False

    def complaints(self) -> list[str]:
        """Errors and warnings: console, exceptions, violations of the page's own policy."""
        self.evaluate("1")  # what was said before this answer has arrived with it
        return [
            json.dumps(event["params"])
            for event in self._browser.events
            if event["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")
            or (
                event["method"] == "Runtime.consoleAPICalled"
                and event["params"]["type"] in ("error", "warning", "assert")
            )
        ]

    def requests(self) -> list[str]:
        """Addresses asked for since the page was opened, the page itself included."""
        return [
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def pdf(self) -> bytes:
        """Print to A4."""
        options = {"printBackground": True, "paperWidth": 8.27, "paperHeight": 11.69}
        return base64.b64decode(self.call("Page.printToPDF", **options)["data"])
