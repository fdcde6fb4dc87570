"""A process beside a real run answers Prometheus and sends alerts, by settings alone."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import socket
from time import monotonic, sleep

import psutil
import pytest

from dsprof.trace.reader import read_trace
from tests.dist.launch import PROGRAMS, environment
from tests.ports import free_port

pytestmark = [pytest.mark.dist]

SECRET = "hunter2-hunter2"
TELLER = "import sys; open(sys.argv[1], 'ab').write(sys.stdin.buffer.read())"
_WITHIN_S = 900
"""Only a test that fails takes this long."""
FAILED = "webhook of on_finding failed"
ALERTS = """\
on_finding:
  command: [{python}, {teller}, {told}]
  webhook: http://127.0.0.1:{port}/{secret}
  headers: {{Authorization: Bearer {secret}}}
  severity: low
"""


@contextmanager
def training(folder: Path, **settings: object) -> Iterator[psutil.Process]:
    """Train with two ranks, the second of which comes late, until the block ends."""
    out, end = folder / "traces", folder / "end"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    command += [str(PROGRAMS / "watched.py"), str(out), str(end)]
    env = environment({f"DSPROF_{name.upper()}": str(value) for name, value in settings.items()})
    with (folder / "log").open("wb") as log:
        agent = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            yield psutil.Process(agent.pid)
        finally:
            end.touch()
            agent.wait(_WITHIN_S)
    assert agent.returncode == 0, (folder / "log").read_text()[-4000:]


def beside(agent: psutil.Process) -> list[psutil.Process]:
    """Return what ranks have started; what that starts comes and goes while it is looked at."""
    started = [one for rank in agent.children() for one in rank.children()]
    return [one for one in started if "dsprof.live.beside" in one.cmdline()]


def eventually(what: str, found: object) -> object:
    """Return the first true answer of `found`; a run on a busy machine takes its time."""
    until = monotonic() + _WITHIN_S
    while monotonic() < until:
        try:
            if value := found():  # type: ignore[operator]
                return value
        except OSError:
            pass
        sleep(0.2)
    pytest.fail(f"never: {what}")


@pytest.mark.long
def test_a_run_has_a_port_and_alerts_and_no_secret_is_written(tmp_path: Path) -> None:
    port, told = free_port(), tmp_path / "told"
    file, teller = tmp_path / "secret.yaml", tmp_path / "teller.py"
    teller.write_text(TELLER)
    given = {"python": sys.executable, "teller": teller, "told": told}
    file.write_text(ALERTS.format(**given, port=free_port(), secret=SECRET))

    def scrape() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text: str = answer.read().decode()
        return text if "\ndsprof_step " in text else ""

    with training(tmp_path, metrics_port=port, alerts=file) as agent:
        assert "dsprof_step_seconds_bucket" in str(eventually("metrics", scrape))
        (follower,) = beside(agent)
        listening = [one for one in follower.net_connections() if one.status == "LISTEN"]
        assert [one.laddr for one in listening] == [("127.0.0.1", port)]
        for rank in agent.children():
            assert port not in [one.laddr[1] for one in rank.net_connections() if one.laddr]
        eventually("an alert", lambda: told.exists() and told.stat().st_size)
        eventually("a complaint", lambda: FAILED in (tmp_path / "log").read_text())
    alert = json.loads(told.read_bytes().splitlines()[0])
    assert alert["findings"][0]["rule"]
    follower.wait(_WITHIN_S)
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path != file]
    assert len(written) >= 3
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []


def test_a_port_that_is_taken_is_a_note(tmp_path: Path) -> None:
    with socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with training(tmp_path, metrics_port=port) as agent:
            eventually("a trace", lambda: b'"name":"step"' in trace(tmp_path).read_bytes())
            assert beside(agent) == []
    notes = [note.text for note in read_trace(trace(tmp_path)).notes]
    assert (
        f"no metrics: another program listens on port {port} of 127.0.0.1; change metrics_port"
        in notes
    )


def test_nothing_is_started_unless_it_is_asked_for(tmp_path: Path) -> None:
    with training(tmp_path) as agent:
        eventually("a trace", lambda: trace(tmp_path).exists())
        assert beside(agent) == []
        assert len(agent.children(recursive=True)) == 2


def trace(folder: Path) -> Path:
    return folder / "traces" / "trace.rank00000.json"
