"""slow-benchmark: a bandwidth benchmark in a log is slower than its links, or computed wrongly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.logs import Logs
from dsprof.analysis.run.transfer_speed import Path
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import percent, plural, rate, size
from dsprof.rules.hardware.links import Expected, LinkModel, accelerator_link
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.trace.rank_log import Measured

_ROWS = 32
_Kind = tuple[str, int, int, str]
_OF_PAIRS = frozenset({"sendrecv", "hypercube"})
"""Each rank sends to one other at a time, which may be over one link of several."""


_LOOK_AT = {"xGMI": "rocm-smi --showtopo and rocm-smi --showtopoaccess"}
"""What to run where links are of this kind, and not NVLink."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From which payload on a row is judged, and when it is slow."""

    share: float = 0.5  # of what others reach over the same links
    least_bytes: int = 256 << 20
    fall_share: float = 0.5  # of the fastest row, below which a larger payload is too slow


class SlowBenchmark(Rule):
    """Judges the fastest row of each benchmark, at a payload where latency no longer counts."""

    meta = RuleMeta(
        id="slow-benchmark",
        title="The bandwidth benchmark reaches the speed of its links",
        failing_title="The bandwidth benchmark is slower than its links",
        why="Training cannot communicate faster than a benchmark that runs only collectives.",
        category="communication",
        order=130,
        needs=(Logs,),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Report wrong results, and judge the bandwidth where hosts and devices are known."""
        rows = [row for log in run[Logs].ranks.values() for row in log.measured]
        if not rows:
            yield self.meta.not_applicable(
                "No table of nccl-tests, all_reduce_bench.py or ds_bench was given."
            )
            return
        if wrong := [row for row in rows if row.wrong]:
            yield self._wrong(wrong)
        large = [row for row in rows if row.nbytes >= thresholds.least_bytes]
        if not large:
            yield self.meta.unknown(
                f"No payload has {size(thresholds.least_bytes)}: smaller ones measure latency."
            )
            return
        best: dict[_Kind, Measured] = {}
        for row in sorted(large, key=lambda row: row.busbw):
            best[_kind(row)] = row
        falls = [fall for table in _tables(large) if (fall := _fall(table, thresholds.fall_share))]
        if falls:
            yield self._falling(*min(falls, key=lambda fall: fall[1].busbw / fall[0].busbw), rows)
        judged = [self._judged(row, rows, thresholds) for row in best.values()]
        failed = [one for one in judged if one.status is Status.FAIL]
        yield from failed or judged[-1:] * (not falls)

    def _judged(self, best: Measured, rows: list[Measured], thresholds: Thresholds) -> Finding:
        expected = _expected(best)
        reached = f"{_what(best)} reaches a bus bandwidth of {rate(best.busbw)}"
        if expected is None or (best.hosts != 1 and best.busbw < thresholds.share * expected.busbw):
            return self.meta.finding(
                Status.INFO,
                f"{reached}. Not judged: the log does not name its links.",
                title="Bandwidth measured by a benchmark",
                evidence=(_table(rows),),
            )
        share = best.busbw / expected.busbw
        text = f"{reached}, {percent(share)} of the {rate(expected.busbw)} that others "
        text += f"reach over {expected.source}."
        if share >= thresholds.share:
            return self.meta.finding(Status.PASS, text, evidence=(_table(rows),))
        look = _LOOK_AT.get(expected.source, "nvidia-smi topo -m and nvidia-smi nvlink -s")
        return self.meta.finding(
            Status.FAIL,
            text,
            severity=Severity.HIGH,
            cause="Peer-to-peer access is off, a link is down, or NCCL takes another path.",
            fix=f"Run {look}",
            action=f"Run {look} on the host, unset NCCL_P2P_DISABLE, and run the benchmark with "
            "NCCL_DEBUG=INFO.",
            evidence=(_table(rows),),
            confidence="medium",
        )

    def _falling(self, fastest: Measured, slow: Measured, rows: list[Measured]) -> Finding:
        reached = f"{_what(fastest)}{_on(slow)} reaches a bus bandwidth of {rate(fastest.busbw)}"
        return self.meta.finding(
            Status.FAIL,
            f"{reached}, but {size(slow.nbytes)} only {rate(slow.busbw)}.",
            problem=f"Bandwidth falls from {rate(fastest.busbw)} to {rate(slow.busbw)} with the "
            "payload",
            severity=Severity.MEDIUM,
            title="Large payloads are slower than smaller ones",
            cause="Congestion, pause frames, or a hot adapter or device slow down long transfers. "
            "On a healthy path the bandwidth does not fall with the payload.",
            fix=f"Run it {_on_fewer(slow.hosts)}, to find the slow one",
            action=f"Run the benchmark {_on_fewer(slow.hosts)}, to find the slow one. Check there "
            f"{'' if slow.hosts == 1 else 'the error and pause counters of the adapters, and '}"
            "the clocks and temperature of devices.",
            evidence=(_table(rows),),
            confidence="medium",
        )

    def _wrong(self, rows: list[Measured]) -> Finding:
        elements, hosts = sum(row.wrong for row in rows), rows[0].hosts
        where = "" if hosts == 1 else "on each host, then "
        return self.meta.finding(
            Status.FAIL,
            f"{_what(rows[0])}{_on(rows[0])} returned {plural(elements, 'wrong element')}.",
            severity=Severity.CRITICAL,
            title="A collective returns wrong results",
            cause="A device, a link or a driver corrupts data.",
            fix=f"Run it {where}{_on_fewer(hosts)}",
            action=f"Run the benchmark {where}{_on_fewer(hosts)}, to find the bad one. Run dcgmi "
            "diag -r 3 or AMD's rvs there, and drain the host.",
            evidence=(_table(rows),),
            confidence="high",
        )


def _on_fewer(hosts: int) -> str:
    """Say on what to run a benchmark next that used so many hosts, 0 if that is unknown."""
    return {1: "on pairs of devices", 2: "on each host with a third one"}.get(
        hosts, "on pairs of hosts"
    )


def _kind(row: Measured) -> _Kind:
    return row.op, row.ranks, row.hosts, row.device


def _tables(rows: Iterable[Measured]) -> Iterable[list[Measured]]:
    """Split rows where another collective begins, or the payload grows no further."""
    table: list[Measured] = []
    for row in rows:
        if table and (_kind(row) != _kind(table[-1]) or row.nbytes <= table[-1].nbytes):
            yield table
            table = []
        table.append(row)
    yield table


def _fall(table: list[Measured], share: float) -> tuple[Measured, Measured] | None:
    """Return the fastest row of a table and the slowest behind it, if that is far slower."""
    at = max(range(len(table)), key=lambda at: table[at].busbw)
    slowest = min(table[at:], key=lambda row: row.busbw)
    return (table[at], slowest) if slowest.busbw < share * table[at].busbw else None


def _expected(row: Measured) -> Expected | None:
    """Return what ranks of one host reach; None where that is not known."""
    link = accelerator_link(row.device)
    if link is None or row.ranks < 2 or row.hosts > 1 or row.op in _OF_PAIRS:
        return None
    path = Path(row.op or "all_reduce", "", row.ranks, 1, "")
    return LinkModel(link, accelerators=row.ranks).expected(path, row.nbytes)


def _what(row: Measured) -> str:
    ranks = f" over {row.ranks} ranks" if row.ranks else ""
    return f"{row.op or 'The benchmark'} of {size(row.nbytes)}{ranks}"


def _on(row: Measured) -> str:
    return f" on {' and '.join(row.host_names)}" if row.host_names else ""


def _table(rows: list[Measured]) -> Table:
    columns = (
        *(Column("operation"), Column("payload", "bytes"), Column("bus bandwidth", "rate")),
        *(Column("ranks", "count"), Column("hosts", "count"), Column("device")),
        Column("wrong elements", "count"),
    )
    largest = sorted(rows, key=lambda row: -row.nbytes)[:_ROWS]
    return Table(columns, tuple(_cells(row) for row in largest))


def _cells(row: Measured) -> tuple[str | int | float | None, ...]:
    ranks, hosts = row.ranks or None, row.hosts or None
    return row.op, row.nbytes, row.busbw, ranks, hosts, row.device, row.wrong
