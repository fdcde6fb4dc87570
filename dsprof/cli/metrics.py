"""`dsprof metrics`: a run for Prometheus while it lasts."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from signal import SIGTERM, signal
from threading import Event
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

from dsprof.cli.loading import add_paths, local_path
from dsprof.cli.output import tell
from dsprof.cli.serve import port
from dsprof.errors import DsprofError

if TYPE_CHECKING:
    from dsprof.live.now import RunNow


class MetricsCommand:
    """Follows the traces of a run and answers Prometheus."""

    name = "metrics"
    help = "serve the figures of a run to Prometheus"
    description = """\
Follow a run while it records, and serve its figures to Prometheus.
Start it once, on a node that sees the folder of traces. The training opens no
port.

  dsprof metrics dsprof-out                     http://127.0.0.1:9467/metrics
  dsprof metrics dsprof-out --host 0.0.0.0      also for other machines

docs/how-to/watch.md lists the metrics."""

    def prepare(self, parser: ArgumentParser) -> None:
        add_paths(parser, "folder that the run records into", local_path)
        parser.add_argument(
            "--port", type=port, default=9467, metavar="N", help="port (default: 9467; 0: any)"
        )
        parser.add_argument(
            "--host",
            default="127.0.0.1",
            metavar="ADDRESS",
            help="address to listen on (default: 127.0.0.1)",
        )
        parser.add_argument(
            "--alerts",
            type=local_path,
            metavar="FILE",
            help="YAML file with the command or webhook that receives findings",
        )
        parser.add_argument(
            "--otlp",
            action="store_true",
            help="also send them by OTLP to OTEL_EXPORTER_OTLP_ENDPOINT",
        )

    def run(self, arguments: Namespace) -> int:
        """Serve until interrupted."""
        try:
            from dsprof.live.metrics import RunCollector, listen
        except ImportError:
            raise DsprofError(
                "dsprof metrics needs prometheus_client: pip install 'dsprof[metrics]'"
            ) from None
        from dsprof.cli.watch import found
        from dsprof.config.alerts import load_alerts
        from dsprof.live.alerts import Alerts
        from dsprof.live.watching import SELDOM_S, repeat

        alerts = Alerts(load_alerts(arguments.alerts)) if arguments.alerts else None
        otlp = _otlp() if arguments.otlp else None
        collector = RunCollector()
        port = listen(collector, arguments.host, arguments.port)
        host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
        tell(f"http://{host}:{port}/metrics; Ctrl-C quits")
        signal(SIGTERM, _quit)
        watched = found(arguments.paths)
        try:
            senders = (otlp.OtlpSender(collector.collect), otlp.StepSpans(watched)) if otlp else ()
        except ValueError as error:
            raise DsprofError(f"OpenTelemetry refuses a variable OTEL_*: {error}") from None

        is_removed = False

        def show(now: RunNow) -> None:
            nonlocal is_removed
            if now.is_removed and not is_removed:
                tell(
                    "the traces were moved or removed while the run goes on, so its metrics are no "
                    "longer served"
                )
            is_removed = now.is_removed
            collector.show(now, watched.totals)
            if alerts is not None:
                alerts.show(now)
            for sender in senders:
                sender.show()

        with ExitStack() as at_end:
            for one in (*senders, *filter(None, [alerts])):
                at_end.callback(one.close)
            try:
                repeat(watched, Event(), show, SELDOM_S)
            finally:
                watched.look()  # the last seconds before the end of the run, often
                watched.judge.close()
                show(watched.now())
        return 0


def _quit(*_: object) -> NoReturn:
    """End like after Ctrl-C: the first process of a container is not ended by SIGTERM itself."""
    sys.exit(0)


def _otlp() -> ModuleType:
    try:
        from dsprof.live import otlp
    except ImportError:
        raise DsprofError("--otlp needs OpenTelemetry: pip install 'dsprof[otlp]'") from None
    return otlp
