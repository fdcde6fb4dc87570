"""Sends the figures of a run by OTLP, the protocol of OpenTelemetry."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from prometheus_client.core import Metric

from dsprof._version import __version__

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
        self._provider = MeterProvider([reader], Resource.create({"service.name": "dsprof"}))
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
