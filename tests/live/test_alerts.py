"""Findings are told by a command or a webhook: once each, seldom, without secrets or a shell."""

import json
import os
import socket
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import msgspec
import pytest

from dsprof.config.alerts import OnFinding, load_alerts
from dsprof.errors import ConfigError
from dsprof.findings.finding import Severity
from dsprof.live import alerts as module
from dsprof.live.alerts import Alerts
from tests.live.test_screen import finding, run

_MERGED = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n + 1}: &a{n + 1} {{<<: [*a{n}, *a{n}]}}\n" for n in range(40)
)
"""Each line doubles the mapping of the line before."""

APPEND = "open(sys.argv[1], 'ab').write(sys.stdin.buffer.read() + b'\\n')"


def told(on_finding: OnFinding, *states: Any) -> list[str]:
    """Show states of a run one after the other; return the complaints."""
    complaints: list[str] = []
    alerts = Alerts(on_finding, complaints.append)
    for state in states:
        alerts.show(state)
        if alerts._sent is not None:
            alerts._sent.result()
    alerts.close()
    return complaints


def appending(path: Path) -> tuple[str, ...]:
    return sys.executable, "-c", "import sys; " + APPEND, str(path)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_finding_is_told_once_as_json(tmp_path: Path) -> None:
    out = tmp_path / "told; touch x"  # a name that a shell would run
    given = OnFinding(command=appending(out), every_minutes=1e-9)
    first, second = finding("late-rank"), finding("giant-bucket")
    low = msgspec.structs.replace(finding("tiny"), severity=Severity.LOW)
    complaints = told(
        given,
        run(),
        run(findings=[first, low]),
        run(findings=[first, low]),
        run(findings=[second, first, low]),
    )
    assert complaints == []
    assert [[one["rule"] for one in alert["findings"]] for alert in lines(out)] == [
        ["late-rank"],
        ["giant-bucket"],
    ]
    assert lines(out)[0] | {"findings": 0} == {
        "run_key": "key",
        "step": 40,
        "stuck": "",
        "findings": 0,
    }
    assert {path.name for path in tmp_path.iterdir()} == {out.name}


def test_what_comes_too_soon_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    given = OnFinding(command=appending(tmp_path / "told"), every_minutes=10)
    alerts = Alerts(given)

    def show(at_s: float, *rules: str) -> int:
        now[0] = at_s
        alerts.show(run(findings=[finding(rule) for rule in rules]))
        assert alerts._sent is not None
        alerts._sent.result()
        return len(lines(tmp_path / "told"))

    assert show(0, "a") == 1
    assert show(599, "a", "b") == 1
    assert show(600, "a", "b") == 2
    assert show(601, "a", "b", "c", "d") == 2
    alerts.close()  # nothing comes later
    rules = [{one["rule"] for one in alert["findings"]} for alert in lines(tmp_path / "told")]
    assert rules == [{"a"}, {"b"}, {"c", "d"}]


def test_what_is_found_while_an_alert_is_sent_is_told_at_the_end(tmp_path: Path) -> None:
    gate, out = tmp_path / "gate", tmp_path / "told"
    os.mkfifo(gate)
    wait = "import os, sys; gate = sys.argv[2]; os.path.exists(gate) and open(gate); "
    code = wait + APPEND + "; os.path.exists(gate) and os.unlink(gate)"
    command = sys.executable, "-c", code, str(out), str(gate)
    alerts = Alerts(OnFinding(command=command, every_minutes=1e-9))
    alerts.show(run(findings=[finding("a")]))
    alerts.show(run(findings=[finding("a"), finding("b")]))
    gate.write_text("")  # which lets the first command go on
    alerts.close()
    assert [[one["rule"] for one in alert["findings"]] for alert in lines(out)] == [["a"], ["b"]]


def test_a_stuck_run_is_told_without_a_finding(tmp_path: Path) -> None:
    out = tmp_path / "told"
    stuck = run(stuck="Rank 1 never entered all_reduce 7.")
    told(OnFinding(command=appending(out), every_minutes=1e-9), stuck, stuck)
    assert [alert["stuck"] for alert in lines(out)] == ["Rank 1 never entered all_reduce 7."]


def test_what_is_stuck_is_told_once_until_it_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "told"
    states = [
        run(stuck=f"Rank {rank} never came; the others waited {waited} s.", stuck_key=str(rank))
        for rank, waited in ((1, 30), (1, 75), (2, 75), (1, 90))
    ]
    told(OnFinding(command=appending(out), every_minutes=1e-9), *states, run(), states[0])
    assert [alert["stuck"] for alert in lines(out)] == [
        "Rank 1 never came; the others waited 30 s.",
        "Rank 2 never came; the others waited 75 s.",
        "Rank 1 never came; the others waited 30 s.",
    ]


def test_a_restart_tells_nothing_again(tmp_path: Path) -> None:
    found = [finding("late-rank")]
    given = OnFinding(command=appending(tmp_path / "told"), every_minutes=1e-9)
    again = run(findings=found, epoch=2)
    again.run_key = "next"
    told(given, run(findings=found), again)
    assert len(lines(tmp_path / "told")) == 1


def test_a_finding_is_told_of_each_run(tmp_path: Path) -> None:
    found = [finding("late-rank")]
    given = OnFinding(command=appending(tmp_path / "told"), every_minutes=1e-9)
    first, second = run(findings=found), run(findings=found)
    second.run_key = "next"
    told(given, first, second, second)
    assert [alert["run_key"] for alert in lines(tmp_path / "told")] == ["key", "next"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("/nowhere/program",), "cannot start: No such file or directory"),
        (("a\0b",), "cannot start: embedded null byte"),
        ((sys.executable, "-c", "raise SystemExit(3)"), "ended with exit code 3"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), "took over 0.5 s and was killed"),
    ],
)
def test_a_command_that_fails_is_said(command: tuple[str, ...], said: str) -> None:
    (complaint,) = told(
        OnFinding(command=command, timeout_s=0.5), run(findings=[finding("late-rank")])
    )
    assert complaint == f"dsprof: the command of on_finding {said}"


class Receiver(BaseHTTPRequestHandler):
    answers: ClassVar[list[int]] = []
    got: ClassVar[list[tuple[Any, bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((self.headers, body))
        self.send_response(self.answers.pop(0))
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST  # noqa: N815 - the name that the base class looks for

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(module, "_PAUSES_S", (0.0, 0.0))
    Receiver.got = []
    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/hook/s3cr3t"
        server.shutdown()


def test_a_webhook_gets_the_finding_and_is_tried_again(receiver: str) -> None:
    Receiver.answers = [503, 200]
    given = OnFinding(webhook=receiver, headers={"Authorization": "Bearer t0ken"})
    assert told(given, run(findings=[finding("late-rank")])) == []
    assert len(Receiver.got) == 2
    headers, body = Receiver.got[1]
    assert headers["Authorization"] == "Bearer t0ken"
    assert headers["Content-Type"] == "application/json"
    assert json.loads(body)["findings"][0]["rule"] == "late-rank"


def test_redirects_are_not_followed_and_secrets_not_said(receiver: str) -> None:
    Receiver.answers = [302, 307, 500]
    given = OnFinding(webhook=receiver, headers={"Authorization": "Bearer t0ken"})
    (complaint,) = told(given, run(findings=[finding("late-rank")]))
    assert complaint == "dsprof: the webhook of on_finding failed: it answered 500"
    assert len(Receiver.got) == 3


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("address", "headers", "why"),
    [
        ("http://127.0.0.1:9/s3cr3t", {}, "URLError"),
        ("http://127.0.0.1/s3cr3t s3cr3t", {}, "InvalidURL"),
        ("http://127.0.0.1:9/s3cr3t", {"X-Key": "s3cr3t\r\nX-More: 1"}, "ValueError"),
        ("http://127.0.0.1:9/s3cr3t", {"X-Key": "s3cr3t\u20ac"}, "UnicodeEncodeError"),
        ("http://s3cr3t..x/", {}, "UnicodeError"),
    ],
)
def test_a_webhook_that_cannot_be_asked_is_said_without_its_secrets(
    monkeypatch: pytest.MonkeyPatch, address: str, headers: dict[str, str], why: str
) -> None:
    monkeypatch.setattr(module, "_PAUSES_S", (0.0, 0.0))
    given = OnFinding(webhook=address, headers=headers, timeout_s=5)
    (complaint,) = told(given, run(findings=[finding("late-rank")]))
    assert complaint == f"dsprof: the webhook of on_finding failed: it cannot be reached ({why})"


def test_a_webhook_that_never_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    monkeypatch.setattr(module, "_PAUSES_S", ())
    given = OnFinding(webhook=silent, timeout_s=0.2)
    (complaint,) = told(given, run(findings=[finding("late-rank")]))
    assert "it cannot be reached (TimeoutError)" in complaint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("on_finding: {command: mail me}", "Expected `array"),
        ("on_finding: {command: []}", "length >= 1"),
        ("on_finding: {}", "needs a command or a webhook"),
        ("on_finding: {webhook: 'file:///etc/passwd'}", "must be an address"),
        ("on_finding: {webhook: 'http://x', severty: low}", "severty"),
        ("on_finding: {webhook: 'http://[x'}", "must be an address"),
        ("on_finding: {webhook: 'http://x:99999/'}", "must be an address"),
        ("on_finding: {webhook: 'http://x:port/'}", "must be an address"),
        ("on_finding: {webhook: 'https:'}", "must be an address"),
        ("on_finding: {webhook: 'http://x', every_minutes: 0}", "> 0"),
        ("on_finding: {webhook: 'http://x', timeout_s: .inf}", "<= 1000000"),
        ("{", "invalid YAML in line 1"),
        ("on_finding:\n  webhook: 'http://x'\n severity: low", "invalid YAML in line 3"),
        ("", "Expected `object`, got `null`"),
        ("on_finding: {every_minutes: 2026-99-99}", "invalid YAML"),
        ("on_finding: {timeout_s: " + "9" * 5000 + "}", "invalid YAML"),
        ("on_finding: {webhook: !!timestamp x}", "invalid YAML"),
        ("on_finding: {webhook: !!int ''}", "invalid YAML"),
        (_MERGED, "invalid YAML"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "alerts.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_alerts(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(path))
