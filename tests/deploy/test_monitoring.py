"""Dashboards and alerts: what they ask for exists, and a real Prometheus answers them."""

import json
import re
import runpy
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import yaml

from dsprof.trace.lines import LINES
from dsprof.trace.schema import MemorySample
from tests.dist.launch import PROGRAMS, ROOT, environment
from tests.factories import trace as make
from tests.factories.trace_files import encode, run_events
from tests.ports import free_port

DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "dsprof.rules.yml"
BOARDS = sorted((DEPLOY / "grafana").glob("*.json"))

THRESHOLD = re.compile(r" (?:==|>) [\de.]+")


def queries() -> list[str]:
    boards = [json.loads(board.read_text()) for board in BOARDS]
    panels = [panel for board in boards for panel in board["panels"]]
    return sorted({target["expr"] for panel in panels for target in panel["targets"]})


def alerts() -> list[str]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return [rule["expr"] for rule in group["rules"]]


def series(expression: str) -> set[str]:
    return set(re.findall(r"dsprof_\w+", expression))


def test_the_dashboards_are_those_of_the_code_and_grafana_can_read_them() -> None:
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    made = dict(runpy.run_path(str(DEPLOY / "grafana" / "dashboards.py"))["built"]())
    assert {board.name for board in BOARDS} == set(made)
    for board in BOARDS:
        assert board.read_text() == made[board.name], "run python deploy/grafana/dashboards.py"
        found = models.Dashboard.from_json(json.loads(made[board.name]))
        assert found.uid == f"dsprof-{board.stem}"
        assert all(panel.targets for panel in found.panels)


def test_dashboards_and_alerts_ask_for_documented_metrics_only() -> None:
    page = (ROOT / "docs" / "how-to" / "watch.md").read_text()
    documented = set(re.findall(r"`(dsprof_\w+)`", page))
    documented |= {f"dsprof_step_seconds_{part}" for part in ("bucket", "sum", "count")}
    for expression in (*queries(), *alerts()):
        assert series(expression) <= documented, expression


@pytest.fixture
def promtool() -> Callable[..., None]:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")

    def run(*arguments: object) -> None:
        done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


def test_alerts_fire_where_they_should(tmp_path: Path, promtool: Callable[..., None]) -> None:
    promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yml")
    test = (Path(__file__).parent / "alerts.test.yml").read_text().replace("RULES", str(RULES))
    (tmp_path / "test.yml").write_text(test)
    promtool("test", "rules", tmp_path / "test.yml")


# -- a real Prometheus ------------------------------------------------------------------------


def write_device_run(folder: Path) -> None:
    """Write a rank with what DDP on a CPU has not: device memory, and flushes of buckets."""
    device = {
        f"{name}.all.current": 1 << 30
        for name in ("allocated_bytes", "reserved_bytes", "inactive_split_bytes")
    }
    events = run_events(make.header(0, 1, device="cuda"))
    events[-1:-1] = [
        LINES["flush"](args=make.flush(1, 20, 5, cause="full")),
        LINES["memory"](args=MemorySample("step", make.ns(400), device=device)),
    ]
    folder.mkdir()
    (folder / "trace.rank00000.json").write_bytes(encode(events))


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Callable[[str], list[Any]]]:
    """Scrape a training of two ranks, and a run on a device, with Prometheus; the value asks it."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    traces, end, device = tmp_path / "traces", tmp_path / "end", tmp_path / "device"
    write_device_run(device)
    metrics, of_device, prometheus = free_port(), free_port(), free_port()
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [
        {"targets": [f"127.0.0.1:{port}" for port in (metrics, of_device)]}
    ]
    config["rule_files"] = [str(RULES)]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    train = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    train += ["--local-addr", "127.0.0.1", "--nproc-per-node", "2", PROGRAMS / "watched.py"]
    commands = (
        [*train, traces, end],
        [sys.executable, "-m", "dsprof", "metrics", traces, "--port", metrics],
        [sys.executable, "-m", "dsprof", "metrics", device, "--port", of_device],
        [
            "prometheus",
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{prometheus}",
        ],
    )

    def answer(query: str) -> list[Any]:
        address = f"http://127.0.0.1:{prometheus}/api/v1/query?"
        with urllib.request.urlopen(address + urllib.parse.urlencode({"query": query})) as found:
            told = json.load(found)
        assert told["status"] == "success", told
        result: list[Any] = told["data"]["result"]
        return result

    with ExitStack() as started, (tmp_path / "log").open("wb") as log:
        for command in commands:
            process = subprocess.Popen(
                [str(word) for word in command], env=environment({}), stdout=log, stderr=log
            )
            started.callback(process.wait)
            started.callback(process.terminate)
        yield answer
        end.touch()


@pytest.mark.dist
@pytest.mark.long
def test_prometheus_answers_every_panel_and_alert(ask: Callable[[str], list[Any]]) -> None:
    def with_data(query: str) -> list[Any]:
        until = monotonic() + 120
        while monotonic() < until:
            try:
                if found := [row for row in ask(query) if row["value"][1] != "NaN"]:
                    return found
            except OSError:
                pass  # it has not started yet
            sleep(0.5)
        pytest.fail(f"no data: {query}")

    for query in queries():
        with_data(query.replace("$instance", ".*").replace("$__rate_interval", "30s"))
    for alert in alerts():
        with_data(THRESHOLD.sub("", alert))
    (lateness,) = with_data("dsprof_straggler_lateness_seconds > 0.04")
    assert float(lateness["value"][1]) < 0.5
    (late,) = with_data("dsprof_straggler_rank")
    assert late["value"][1] == "1"
