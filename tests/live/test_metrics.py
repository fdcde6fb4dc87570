"""What Prometheus reads: known names, bounded labels, nothing where nothing is known."""

import gzip
import re
import socket
from collections import Counter
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dsprof.__main__ import main
from dsprof.live import http, totals
from dsprof.live.metrics import RunCollector, listen
from dsprof.live.now import InFlight, RunNow
from dsprof.live.recent import StepOfRank
from dsprof.live.totals import OTHERS, Totals, bounded
from dsprof.trace.chunks import Chunk
from dsprof.trace.lines import LINES
from tests.dist.launch import ROOT
from tests.factories.trace import flush, ns, sync
from tests.live.test_screen import finding, rank, run


def scraped(now: RunNow, totals: Totals | None = None) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return the value of each sample, by its name and the values of its labels."""
    collector, registry = RunCollector(), CollectorRegistry()
    registry.register(collector)
    collector.show(now, totals or Totals())
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def step(total_ms: float, exposed_ms: float | None = 0) -> StepOfRank:
    exposed_ns = None if exposed_ms is None else ns(exposed_ms)
    return StepOfRank(ns(total_ms), exposed_ns, None, None, None)


def test_steps_are_a_histogram_and_count_once_though_told_twice() -> None:
    totals = Totals()
    for number, one in ((0, step(30)), (0, step(40, 10)), (1, step(400, 50)), (2, step(9))):
        totals.add_step(0, number, one, "node-a")
    found = scraped(run(), totals)
    lengths = {labels[1]: n for (name, labels), n in found.items() if name.endswith("_bucket")}
    assert [lengths[le] for le in ("0.02", "0.05", "0.2", "0.5", "+Inf")] == [0, 1, 1, 2, 2]
    assert found["dsprof_step_seconds_sum", ("node-a",)] == pytest.approx(0.44)
    assert found["dsprof_exposed_seconds_total", ("node-a",)] == pytest.approx(0.06)


def test_a_step_that_is_told_again_after_the_end_counts_once() -> None:
    totals = Totals()
    totals.add_step(0, 0, step(30), "node-a")
    totals.end(0, "node-a")
    totals.add_step(0, 0, step(40), "node-a")  # the rank was thought gone, and writes again
    totals.end(0, "node-a")
    assert scraped(run(), totals)["dsprof_step_seconds_sum", ("node-a",)] == pytest.approx(0.03)


def test_collectives_are_counted_by_operation_and_group_up_to_a_number() -> None:
    totals = Totals()
    calls = [sync("all_reduce", 0, 1, nbytes=100, group=1) for _ in range(3)]
    totals.add(Chunk(events=calls), {1: "data"})
    for group in range(2, 400):
        totals.add(
            Chunk(events=[sync("broadcast", 0, 1, nbytes=7, group=group)]), {group: f"g{group}"}
        )
    found = scraped(run(), totals)
    assert found["dsprof_calls_total", ("data", "all_reduce")] == 3
    assert found["dsprof_bytes_total", ("data", "all_reduce")] == 300
    assert found["dsprof_calls_total", ("others", "others")] == 398 - 199
    assert sum(name == "dsprof_calls_total" for name, _ in found) == 201


def test_names_without_end_and_numbers_beyond_all_machines_are_bounded() -> None:
    totals = Totals()
    for number in range(5000):
        totals.add(Chunk(events=[sync(f"op{number}", 0, 1, nbytes=10**400)]), {})
        totals.add(Chunk(events=[LINES["flush"](args=flush(0, 0, 1, cause=f"c{number}"))]), {})
    assert len(totals.calls) == len(totals.nbytes) == 201
    assert len(totals.flushes) == 17
    found = scraped(run(), totals)
    assert sum(n for (name, _), n in found.items() if name == "dsprof_calls_total") == 5000


def test_names_with_control_characters_or_passwords_do_not_pass() -> None:
    name = "a\x1b[2J\u202e\ud800 https://ann:pa55w0rd@host/"
    totals = Totals()
    totals.add_step(0, 0, step(20), name)
    totals.add_step(0, 1, step(20), name)
    totals.add(Chunk(events=[sync(name, 0, 1, nbytes=1)]), {})
    now = run(rank(0, host=name))
    now.run_key = name
    found = scraped(now, totals)
    labels = {label for _, values in found for label in values if label.startswith("a")}
    assert labels == {"a\\x1b[2J\\u202e\\ud800 https://<redacted>@host/"}


def test_no_count_decreases_though_others_become_more_common() -> None:
    totals = Totals()

    def counts() -> dict[tuple[str, tuple[str, ...]], float]:
        return {key: n for key, n in scraped(run(), totals).items() if key[0].endswith("_total")}

    def add(numbers: range, calls: int, nbytes: int) -> None:
        for number in numbers:
            more = [sync("all_gather", 0, 1, nbytes=nbytes, group=number) for _ in range(calls)]
            more += [LINES["flush"](args=flush(0, 0, 1, cause=f"c{number}")) for _ in range(calls)]
            totals.add(Chunk(events=more), {number: f"group {number}"})

    add(range(210), 2, 10**6)
    before = counts()
    add(range(100, 210), 3, 1)
    after = counts()
    own = "dsprof_own_cpu_seconds_total", ()
    assert before.keys() == after.keys()
    assert [key for key in before if key != own and after[key] < before[key]] == []
    assert after["dsprof_flushes_total", ("others",)] == 194 * 2 + 110 * 3


def test_flushes_are_counted_by_cause() -> None:
    totals = Totals()
    totals.add(
        Chunk(events=[LINES["flush"](args=flush(n, 0, 1, cause="full")) for n in range(3)]), {}
    )
    assert scraped(run(), totals)["dsprof_flushes_total", ("full",)] == 3


def test_what_is_not_known_has_no_sample() -> None:
    totals = Totals()
    for number in range(3):
        totals.add_step(0, number, step(100, None), "gpu-host")
    found = scraped(run(rank(0, rss_bytes=None), straggler=None), totals)
    names = {name for name, _ in found}
    assert not names & {
        "dsprof_straggler_rank",
        "dsprof_straggler_lateness_seconds",
        "dsprof_host_memory_bytes",
        "dsprof_findings",
        "dsprof_device_stuck_bytes",
        "dsprof_exposed_seconds_total",
    }
    assert found["dsprof_step_seconds_count", ("gpu-host",)] == 2


def test_of_a_run_whose_traces_are_gone_only_its_name_is_told() -> None:
    """A step that stays the same would look stuck, and 0 would say that the run is not."""
    names = {name for name, _ in scraped(run(step=9, is_removed=True), Totals())}
    assert names == {"dsprof_run_info", "dsprof_own_cpu_seconds_total"}


def test_findings_are_counted_by_severity_once_judged() -> None:
    found = scraped(run(findings=[finding("late-rank")], judged_steps=3))
    counts = {labels: n for (name, labels), n in found.items() if name == "dsprof_findings"}
    assert counts == {("critical",): 0, ("high",): 1, ("medium",): 0, ("low",): 0}


@pytest.mark.parametrize("count", [64, 65])
def test_many_ranks_are_told_by_host_and_the_worst_speaks(count: int) -> None:
    flying: dict[str, Any] = {"in_flight": InFlight("all_reduce", "data", 8, ns(3000))}
    ranks = [rank(number, **(flying if number == 7 else {})) for number in range(count)]
    found = scraped(run(*ranks))
    ages = {labels: n for (name, labels), n in found.items() if name == "dsprof_in_flight_seconds"}
    assert len(ages) == (64 if count == 64 else 1)
    assert max(ages.values()) == 3


def test_hosts_are_bounded() -> None:
    totals = Totals()
    hosts = ["x" * 10_000_000, *(f"n{number}" for number in range(3000))]
    for number, host in enumerate(hosts):
        totals.add_step(number, 0, step(20), host)
        totals.add_step(number, 1, step(20), host)
    found = scraped(run(*(rank(number, host=f"n{number}") for number in range(3000))), totals)
    counts = Counter(name for name, _ in found)
    assert counts["dsprof_host_memory_bytes"] == 2049
    assert counts["dsprof_step_seconds_count"] == 2049
    assert max(len(label) for _, labels in found for label in labels) == 200
    assert (bounded("n0", totals.steps), bounded("n2999", totals.steps)) == ("n0", OTHERS)
    assert sum(n for (name, _), n in found.items() if name == "dsprof_step_seconds_count") == 3001


def test_only_the_begin_of_a_long_name_is_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    monkeypatch.setattr(totals, "redact_text", lambda name: looked_at.append(name) or name)
    assert bounded("x" * 10_000_000, ()) == "x" * 200
    assert [len(name) for name in looked_at] == [1000]


def test_the_catalogue_is_that_of_the_docs() -> None:
    totals = Totals()
    totals.add(Chunk(events=[sync("all_reduce", 0, 1), LINES["flush"](args=flush(0, 0, 1))]), {})
    for number in range(2):
        totals.add_step(0, number, step(20), "node-a")
    memory = dict.fromkeys(("allocated_bytes", "reserved_bytes", "stuck_bytes"), 1)
    collector = RunCollector()
    known = {"straggler": 0, "straggler_ns": 1, "judged_steps": 1, "exposed_share": 0.5}
    collector.show(run(rank(0, late_ns=1, **memory), **known), totals)
    exposed = {
        sample.name: set(sample.labels)
        for family in collector.collect()
        for sample in family.samples
        if not sample.name.endswith(("_bucket", "_count", "_sum"))
    }
    exposed["dsprof_step_seconds"] = {"host"}
    page = (ROOT / "docs" / "how-to" / "watch.md").read_text()
    rows = re.findall(r"^\| (`dsprof_.*?) \| (.*?)\|", page, re.MULTILINE)
    documented = {
        name: set(re.findall(r"`(\w+)`", labels))
        for names, labels in rows
        for name in re.findall(r"`(\w+)`", names)
    }
    assert documented == exposed


def test_a_host_that_has_no_possible_name_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["metrics", str(tmp_path), "--host", "a..b", "--port", "0"]) == 2
    assert "unknown host 'a..b'" in capsys.readouterr().err


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


IPV6 = pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here"))


@pytest.mark.parametrize("host", ["127.0.0.1", IPV6])
def test_many_open_connections_leave_prometheus_its_answers(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 1)
    collector = RunCollector()
    collector.show(run(), Totals())
    port = listen(collector, host, 0)
    held = [socket.create_connection((host, port), timeout=30) for _ in range(3 * http.REQUESTS)]
    for connection in held:  # each is closed: at once where too many are open, else after a second
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""
        connection.close()
    connection = HTTPConnection(host, port, timeout=30)
    connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    assert answer.status == 200
    assert b"dsprof_step 40.0" in gzip.decompress(answer.read())
    connection.close()
