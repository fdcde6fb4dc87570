"""Sends findings while a run lasts, to a command or a webhook."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import Any

import msgspec

from dsprof.config.alerts import OnFinding
from dsprof.findings.finding import Finding, Severity
from dsprof.live.now import RunNow

_PAUSES_S = (1.0, 5.0)
"""Between attempts to reach a webhook."""


class Alert(msgspec.Struct):
    """What is sent: on standard input of the command, and as the body for the webhook."""

    run_key: str
    step: int | None
    stuck: str  # why no step ends; "" where steps end
    findings: list[Finding]  # those that were not sent before


class Alerts:
    """Sends a finding once a run, and no two alerts within `every_minutes`; later ones wait."""

    def __init__(
        self,
        on_finding: OnFinding,
        complain: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    ) -> None:
        self._on_finding, self._complain = on_finding, complain
        self._least = Severity(on_finding.severity)
        self._now: RunNow | None = None
        self._run_key = ""
        self._known: set[str] = set()  # rules
        self._known_stuck: set[str] = set()  # what is stuck, since a step has ended
        self._next_at = monotonic()
        self._sender = ThreadPoolExecutor(1)
        self._sent: Future[None] | None = None

    def show(self, now: RunNow) -> None:
        """Send what is new in the state of a run, unless something is being sent."""
        self._now = now
        if not now.stuck:
            self._known_stuck.clear()
        is_busy = self._sent is not None and not self._sent.done()
        if not is_busy and monotonic() >= self._next_at:
            self._send_new(now)

    def close(self) -> None:
        """Send what still waits, and wait for it."""
        if self._now is not None:
            self._send_new(self._now)
        self._sender.shutdown()

    def _send_new(self, now: RunNow) -> None:
        if now.run_key != self._run_key and now.epoch == 1:  # else it restarted
            self._run_key, self._known, self._known_stuck = now.run_key, set(), set()
        new = [
            one
            for one in now.findings
            if one.severity.order <= self._least.order and one.rule not in self._known
        ]
        if not new and (not now.stuck or now.stuck_key in self._known_stuck):
            return
        self._next_at = monotonic() + 60 * self._on_finding.every_minutes
        self._known |= {one.rule for one in new}
        if now.stuck:
            self._known_stuck.add(now.stuck_key)
        alert = Alert(now.run_key, now.step, now.stuck, new)
        self._sent = self._sender.submit(self._send, msgspec.json.encode(alert))

    def _send(self, body: bytes) -> None:
        given = self._on_finding
        if given.command is not None:
            self._run(given.command, body)
        if given.webhook:
            self._post(body)

    def _run(self, command: Sequence[str], body: bytes) -> None:
        try:
            done = subprocess.run(
                command,
                input=body,
                stdout=subprocess.DEVNULL,  # it may write without end
                stderr=subprocess.DEVNULL,
                timeout=self._on_finding.timeout_s,
                start_new_session=True,  # Ctrl-C is for whoever watches
            )
        except subprocess.TimeoutExpired:
            self._complain(
                f"dsprof: the command of on_finding took over {self._on_finding.timeout_s:g} s and "
                "was killed"
            )
        except (OSError, ValueError) as error:  # ValueError: a NUL is in it
            why = error.strerror if isinstance(error, OSError) else error
            self._complain(f"dsprof: the command of on_finding cannot start: {why}")
        else:
            if done.returncode:
                self._complain(
                    f"dsprof: the command of on_finding ended with exit code {done.returncode}"
                )

    def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json", **self._on_finding.headers}
        failure = ""
        for pause_s in (0, *_PAUSES_S):
            time.sleep(pause_s)
            try:
                request = urllib.request.Request(self._on_finding.webhook, body, headers)
                with _opener.open(request, timeout=self._on_finding.timeout_s):
                    return
            except urllib.error.HTTPError as error:
                failure = f"it answered {error.code}"
            except Exception as error:  # noqa: BLE001 - urllib raises what it likes
                # Its text may quote the address.
                failure = f"it cannot be reached ({type(error).__name__})"
        self._complain(f"dsprof: the webhook of on_finding failed: {failure}")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would send headers with secrets to somewhere else."""

    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)
