"""Sends the figures of a run by OTLP, the protocol of OpenTelemetry."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client.core import Metric

from dsprof._version import __version__
from dsprof.live.watching import Watched
from dsprof.trace.schema import Step

Families = Callable[[], Iterable[Metric]]


class OtlpSender:
    """Sends what a collector for Prometheus tells, every few seconds, from a thread of its own.

    Where to send, how often, and with which headers say OpenTelemetry's own variables,
    `OTEL_EXPORTER_OTLP_ENDPOINT` and so on: headers may hold a secret.
    """

    def __init__(self, families: Families) -> None:
        _show_no_secrets()
        self._families = families
        self._known: set[str] = set()
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        self._provider = MeterProvider([reader], _resource())
        self._meter = self._provider.get_meter("dsprof", __version__)

    def show(self) -> None:
        """Send from now on what was not there before."""
        for family in self._families():
            for name in {sample.name for sample in family.samples} - self._known:
                self._known.add(name)
                is_sum = family.type == "counter" or name.endswith(("_bucket", "_count", "_sum"))
                make = (
                    self._meter.create_observable_counter
                    if is_sum
                    else self._meter.create_observable_gauge
                )
                make(name.removesuffix("_total"), [self._reading(name)], "", family.documentation)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()

    def _reading(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            for family in self._families():
                for sample in family.samples:
                    if sample.name == name:
                        yield Observation(float(sample.value), sample.labels)

        return read


class StepSpans:
    """Sends each step of the first rank as a span of the trace that `TRACEPARENT` names.

    That is OpenTelemetry's variable for a process that another one starts; without it none is sent.
    """

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        names = ("traceparent", "tracestate")
        carrier = {name: os.environ.get(name.upper(), "") for name in names}
        self._parent = TraceContextTextMapPropagator().extract(carrier)
        self._provider = TracerProvider(resource=_resource())
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("dsprof", __version__)

    def show(self) -> None:
        """Send the steps that have ended since the last call."""
        steps, rank = self._watched.ended, min(self._watched.ranks)
        started_ns = self._watched.ranks[rank].header.started_epoch_ns
        has_parent = get_current_span(self._parent).get_span_context().is_valid
        while steps:
            step = steps.popleft()
            if has_parent:
                self._send(step, rank, started_ns)

    def _send(self, step: Step, rank: int, started_ns: int) -> None:
        found = self._watched.recent.steps.get(step.step, {}).get(rank)
        attributes: dict[str, float] = {"dsprof.step": step.step, "dsprof.rank": rank}
        if found is not None and found.exposed_ns is not None:
            attributes["dsprof.exposed_seconds"] = found.exposed_ns / 1e9
        begin_ns, end_ns = started_ns + step.start_ns, started_ns + step.end_ns
        span = self._tracer.start_span(
            "step", self._parent, attributes=attributes, start_time=begin_ns
        )
        span.end(end_ns)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def _resource() -> Resource:
    return Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "dsprof")})


class _Problems(logging.Handler):
    """Shows what OpenTelemetry logs, but of its values numbers only: others may be secrets."""

    def emit(self, record: logging.LogRecord) -> None:
        given = record.args if isinstance(record.args, tuple) else ()
        text = record.msg % tuple(map(_harmless, given)) if given else record.msg
        print(f"dsprof: OpenTelemetry: {text}", file=sys.stderr)


def _harmless(value: object) -> object:
    if isinstance(value, Exception):
        return type(value).__name__  # its text may quote the address
    return value if isinstance(value, (int, float)) else "..."


def _show_no_secrets() -> None:
    logger = logging.getLogger("opentelemetry")
    logger.handlers, logger.propagate = [_Problems(logging.WARNING)], False
