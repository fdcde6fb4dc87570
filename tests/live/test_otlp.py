"""What a receiver of OTLP gets: the figures that Prometheus reads."""

import gzip
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

from dsprof.live.metrics import RunCollector
from dsprof.live.otlp import OtlpSender, OTLPSpanExporter, StepSpans
from dsprof.live.totals import Totals
from dsprof.live.watching import Watched
from tests.factories import trace as make
from tests.factories.trace import sync
from tests.factories.trace_files import encode
from tests.live.test_following import events
from tests.live.test_screen import run

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Receiver(BaseHTTPRequestHandler):
    got: ClassVar[list[tuple[str, bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        packed = self.headers["Content-Encoding"] == "gzip"
        self.got.append((self.headers["Authorization"], gzip.decompress(body) if packed else body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


def test_a_receiver_gets_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = Totals()
    totals.add_lines([sync("all_reduce", 0, 1, nbytes=100)], {1: "data"})
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
    (secret, body), *_ = Receiver.got
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
    Receiver.got.clear()
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
    (_, body), *more = Receiver.got
    assert more == []
    sent = [
        span
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    started_ns = watched.ranks[0].header.started_epoch_ns
    numbers = [{one.key: one.value.int_value for one in span.attributes} for span in sent]
    assert [one["dsprof.step"] for one in numbers] == [0, 1, 2]
    for number, span in enumerate(sent):
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
        times = span.start_time_unix_nano - started_ns, span.end_time_unix_nano - started_ns
        assert times == (make.ns(50 * number), make.ns(50 * number + 50))


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
