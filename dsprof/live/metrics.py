"""A run for Prometheus: a bounded catalogue, in the words of docs/how-to/watch.md.

Labels are hosts, operations and groups, never steps, and ranks only where they are few.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from threading import Lock, Thread

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from dsprof.errors import DsprofError
from dsprof.findings.finding import Severity
from dsprof.live.http import BoundedHandler, BoundedServer
from dsprof.live.now import RankNow, RunNow
from dsprof.live.totals import BUCKETS_S, Totals, bounded, label

_MOST_RANKS = 64
"""In a run of more ranks each series describes a host."""

_LENGTHS = (*map(str, BUCKETS_S), "+Inf")


class RunCollector(Collector):
    """Tells Prometheus what the last look has seen."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._families: list[Metric] = []

    def show(self, now: RunNow, totals: Totals) -> None:
        """Tell this from now on; of a run whose traces are gone, only which one it is."""
        families = [_info(now), _own_cpu()]
        if not now.is_removed:
            families += [
                *_of_run(now),
                *_of_ranks(now),
                *_of_traffic(totals),
                *_of_steps(totals),
            ]
        with self._lock:
            self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield the families of metrics."""
        with self._lock:
            yield from self._families


def listen(collector: RunCollector, host: str, port: int) -> int:
    """Answer Prometheus from a thread; return the port.

    Raises:
        DsprofError: the address cannot be listened on.
    """
    try:
        server = _Server(host, port, collector)
    except UnicodeError:  # no name has such parts
        raise DsprofError(f"unknown host '{host}'; correct --host") from None
    except OSError as error:
        raise DsprofError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose "
            "another port with --port N, or any with --port 0"
        ) from None
    Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


class _Server(BoundedServer):
    def __init__(self, host: str, port: int, collector: RunCollector) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]  # IPv6, too
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        super().__init__((str(address[0]), port), _Handler.of(registry))


class _Handler(BoundedHandler, MetricsHandler):
    @classmethod
    def of(cls, registry: CollectorRegistry) -> type[BoundedHandler]:
        return type("_Handler", (cls,), {"registry": registry})


def _info(now: RunNow) -> Metric:
    info = InfoMetricFamily("dsprof_run", "The watched run")
    info.add_metric([], {"run_key": label(now.run_key), "world_size": str(now.world_size)})
    return info


def _own_cpu() -> Metric:
    own = CounterMetricFamily(
        "dsprof_own_cpu_seconds", "CPU time of dsprof metrics itself, with its judgements"
    )
    own.add_metric([], sum(os.times()[:4]))  # judgements are its children
    return own


def _of_run(now: RunNow) -> Iterator[Metric]:
    yield _gauge("dsprof_over", "1 once all ranks have ended, or are gone", now.is_over)
    yield _gauge("dsprof_step", "The last step that a rank completed", now.step)
    yield _gauge("dsprof_epoch", "Starts of the process group, restarts included", now.epoch)
    yield _gauge("dsprof_ranks", "Ranks that have a trace", len(now.ranks))
    yield _gauge(
        "dsprof_exposed_share",
        "Exposed communication as a share of recent steps",
        now.exposed_share,
    )
    yield _gauge(
        "dsprof_straggler_rank",
        "The rank that delays the others in recent steps; absent if there is none",
        now.straggler,
    )
    yield _gauge(
        "dsprof_straggler_lateness_seconds",
        "By how much it delays the others in a step",
        _seconds(now.straggler_ns),
    )
    yield _gauge("dsprof_stuck", "1 if no step ends and the cause is known", bool(now.stuck))
    found = GaugeMetricFamily("dsprof_findings", "Findings so far", labels=["severity"])
    counts = Counter(finding.severity for finding in now.findings)
    for severity in Severity:
        if severity is not Severity.NONE and now.judged_steps is not None:
            found.add_metric([severity.value], counts[severity])
    yield found


def _of_ranks(now: RunNow) -> Iterator[Metric]:
    """Yield what is of ranks, or of hosts, where the worst of their ranks speaks."""
    is_few = len(now.ranks) <= _MOST_RANKS
    for name, text, value in _OF_RANKS:
        family = GaugeMetricFamily(name, text, labels=["host", "rank"])
        hosts: dict[str, float] = {}
        for rank in now.ranks:
            if (found := value(rank)) is None:
                continue
            if is_few:
                family.add_metric([label(rank.host), str(rank.rank)], found)
            else:
                host = bounded(rank.host, hosts)
                hosts[host] = max(found, hosts.get(host, found))
        for host, worst in hosts.items():
            family.add_metric([host, ""], worst)
        yield family


def _of_steps(totals: Totals) -> Iterator[Metric]:
    lengths = HistogramMetricFamily(
        "dsprof_step_seconds", "Length of the steps of all ranks", labels=["host"]
    )
    exposed = CounterMetricFamily(
        "dsprof_exposed_seconds", "Exposed communication of all ranks", labels=["host"]
    )
    for host, steps in totals.steps.items():
        so_far = accumulate(steps.lengths[place] for place in range(len(_LENGTHS)))
        buckets = [(length, float(n)) for length, n in zip(_LENGTHS, so_far, strict=True)]
        lengths.add_metric([host], buckets, steps.total_s)
        if steps.exposed_s is not None:
            exposed.add_metric([host], steps.exposed_s)
    yield lengths
    yield exposed


def _of_traffic(totals: Totals) -> Iterator[Metric]:
    calls = CounterMetricFamily("dsprof_calls", "Collectives", labels=["op", "group"])
    nbytes = CounterMetricFamily("dsprof_bytes", "Bytes of collectives", labels=["op", "group"])
    for (op, group), count in totals.calls.items():
        calls.add_metric([op, group], count)
        nbytes.add_metric([op, group], totals.nbytes[op, group])
    yield calls
    yield nbytes
    flushes = CounterMetricFamily("dsprof_flushes", "Flushes of gradient buckets", labels=["cause"])
    for cause, count in totals.flushes.items():
        flushes.add_metric([cause], count)
    yield flushes


def _gauge(name: str, text: str, value: float | None) -> Metric:
    """Return a gauge; one whose value is not known has no sample."""
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric([], float(value))
    return family


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def _in_flight(rank: RankNow) -> float | None:
    if rank.state in ("ended", "crashed"):
        return None
    return rank.in_flight.age_ns / 1e9 if rank.in_flight is not None else 0.0


_OF_RANKS = (
    (
        "dsprof_in_flight_seconds",
        "Age of the oldest collective in flight",
        _in_flight,
    ),
    (
        "dsprof_rank_silent",
        "1 if the rank has shown no sign of life for 10 seconds, or is gone",
        lambda rank: float(rank.state in ("silent", "gone")),
    ),
    (
        "dsprof_rank_lateness_seconds",
        "By how much longer the others wait in a step than the rank",
        lambda rank: _seconds(rank.late_ns),
    ),
    ("dsprof_host_memory_bytes", "Resident memory of the process", lambda rank: rank.rss_bytes),
    (
        "dsprof_device_allocated_bytes",
        "Device memory in use",
        lambda rank: rank.allocated_bytes,
    ),
    (
        "dsprof_device_reserved_bytes",
        "Device memory that the allocator has reserved",
        lambda rank: rank.reserved_bytes,
    ),
    (
        "dsprof_device_stuck_bytes",
        "Free device memory in segments that are partly used",
        lambda rank: rank.stuck_bytes,
    ),
)
