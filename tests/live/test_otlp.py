"""What a receiver of OTLP gets: the figures that Prometheus reads."""

import gzip
import subprocess
import sys
import urllib.request
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from dsprof.__main__ import main
from dsprof.live.metrics import RunCollector
from dsprof.live.otlp import OtlpSender, OTLPSpanExporter, StepSpans
from dsprof.live.totals import Totals
from dsprof.live.watching import Watched
from dsprof.trace.chunks import Chunk
from tests.cli.command import environment
from tests.factories import trace as make
from tests.factories.trace import sync
from tests.factories.trace_files import encode
from tests.live.test_following import events
from tests.live.test_screen import run

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Receiver(BaseHTTPRequestHandler):
    got: ClassVar[list[tuple[str, str, bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        packed = self.headers["Content-Encoding"] == "gzip"
        body = gzip.decompress(body) if packed else body
        self.got.append((self.path, self.headers["Authorization"], body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(autouse=True)
def _nothing_received() -> None:
    Receiver.got.clear()


def received_spans() -> list[Span]:
    """Return those that were received."""
    return [
        span
        for path, _, body in Receiver.got
        if path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def numbers(sent: Iterable[Span]) -> list[dict[str, int]]:
    return [{one.key: one.value.int_value for one in span.attributes} for span in sent]


def test_a_receiver_gets_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = Totals()
    totals.add(Chunk(events=[sync("all_reduce", 0, 1, nbytes=100)]), {1: "data"})
    collector = RunCollector()
    collector.show(run(straggler=3), totals)
    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20t0ken")
        sender = OtlpSender(collector.collect)
        sender.show()
        sender.show()  # nothing is made twice
        sender.close()
        server.shutdown()
    (_, secret, body), *_ = Receiver.got
    assert secret == "Bearer t0ken"
    request = ExportMetricsServiceRequest.FromString(body)
    metrics = {
        metric.name: metric
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    (straggler,) = metrics["dsprof_straggler_rank"].gauge.data_points
    assert straggler.as_double == 3
    (nbytes,) = metrics["dsprof_bytes"].sum.data_points
    labels = {one.key: one.value.string_value for one in nbytes.attributes}
    assert (nbytes.as_double, labels) == (100, {"op": "all_reduce", "group": "data"})
    assert metrics["dsprof_bytes"].sum.is_monotonic


def test_steps_are_spans_of_the_trace_that_started_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(2):
        (tmp_path / f"trace.rank{rank:05d}.json").write_bytes(encode(events(rank, steps=3)))
    monkeypatch.setenv("TRACEPARENT", f"00-{TRACE}-{SPAN}-01")
    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        watched = Watched([tmp_path])
        spans = StepSpans(watched)
        watched.look()
        spans.show()
        watched.look()
        spans.show()  # none is sent twice
        watched.judge.close()
        spans.close()
        server.shutdown()
    assert len(Receiver.got) == 1
    sent = received_spans()
    started_ns = watched.ranks[0].header.started_epoch_ns
    assert [one["dsprof.step"] for one in numbers(sent)] == [0, 1, 2]
    for number, span in enumerate(sent):
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
        times = span.start_time_unix_nano - started_ns, span.end_time_unix_nano - started_ns
        assert times == (make.ns(50 * number), make.ns(50 * number + 50))


def test_sigterm_ends_the_command_which_sends_what_is_new(tmp_path: Path) -> None:
    file = tmp_path / "trace.rank00000.json"
    lines = encode(events(0, steps=6)).split(b",\n")
    file.write_bytes(b",\n".join(lines[:-3]) + b",\n")  # without the last step
    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        env = environment(
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{server.server_port}",
            TRACEPARENT=f"00-{TRACE}-{SPAN}-01",
        )
        command = [sys.executable, "-m", "dsprof", "metrics", tmp_path, "--port", "0", "--otlp"]
        with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            address = process.stderr.readline().split()[1].rstrip(";")
            while b"dsprof_step 4.0" not in urllib.request.urlopen(address).read():
                pass
            with file.open("ab") as grown:
                grown.write(b",\n".join(lines[-3:]))
            process.terminate()
            said = process.stderr.read()
        server.shutdown()
    assert (process.returncode, said) == (0, "")
    assert {path for path, _, _ in Receiver.got} == {"/v1/metrics", "/v1/traces"}
    assert [one["dsprof.step"] for one in numbers(received_spans())] == [*range(6)]


def test_without_a_trace_context_no_span_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trace.rank00000.json").write_bytes(encode(events(0, steps=3)))
    monkeypatch.delenv("TRACEPARENT", raising=False)
    monkeypatch.setattr(OTLPSpanExporter, "export", lambda *_: pytest.fail("a span"))
    watched = Watched([tmp_path])
    spans = StepSpans(watched)
    watched.look()
    spans.show()
    watched.judge.close()
    spans.close()
    assert not watched.ended


def test_neither_address_nor_headers_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "strange://user:s3cret@host/s3cret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization Bearer s3cret")
    collector = RunCollector()
    collector.show(run(straggler=3), Totals())
    sender = OtlpSender(collector.collect)
    sender.show()
    sender.close()
    said = capsys.readouterr().err
    assert "dsprof: OpenTelemetry: Failed to export ... batch" in said
    assert "Header format invalid" in said
    assert "s3cret" not in said


def test_a_variable_that_opentelemetry_refuses_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace.rank00000.json").write_bytes(encode(events(0, steps=3)))
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    # Its handler would stay for all tests that follow in this process, and for what they fork.
    monkeypatch.setattr("dsprof.cli.metrics.signal", lambda *_: None)
    assert main(["metrics", str(tmp_path), "--port", "0", "--otlp"]) == 2
    assert "dsprof: OpenTelemetry refuses a variable OTEL_*: max_q" in capsys.readouterr().err
