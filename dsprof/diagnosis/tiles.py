"""The figures beside the headline, by what was given: label, value and detail of each.

What is unknown is left out, or says so; it is never zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from dsprof.diagnosis.headline import has_verdict
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.memory import RankMemory, SnapshotRow
from dsprof.diagnosis.parts.run import MOST_SOURCES, Tile
from dsprof.diagnosis.parts.steps import TypicalStep
from dsprof.findings import frames
from dsprof.findings.brief import first_sentence
from dsprof.findings.finding import Finding, Status, by_severity
from dsprof.findings.wording import (
    duration,
    figures,
    named,
    percent,
    plural,
    reason,
    size,
)
from dsprof.trace.device_counters import PEAK_ALLOCATED, PEAK_RESERVED

Kind = Literal["training", "hang", "snapshot", "log", "device", "collectives"]
"""The kind of input: it decides which figures matter."""

_LATE, _SLOW = "late-rank", "periodic-slow-step"
_DEVICE = ((PEAK_RESERVED, "reserved"), (PEAK_ALLOCATED, "allocated"))


def kind_of(diagnosis: Diagnosis) -> Kind:
    """Return what the figures of a run are about."""
    if diagnosis.hang is not None:
        return "hang"
    if diagnosis.steps.measured_steps or (diagnosis.quality.is_recorded and diagnosis.run.source):
        return "training"
    if diagnosis.snapshots:
        return "snapshot"
    if diagnosis.devices:
        return "device"
    return "collectives" if diagnosis.communication else "log"


def tiles(diagnosis: Diagnosis) -> list[Tile]:
    """Return the figures of a run, the most important first."""
    return [*_TILES[kind_of(diagnosis)](diagnosis)]


def _training(d: Diagnosis) -> Iterator[Tile]:
    if (typical := d.steps.typical) is not None:
        yield Tile("Step", duration(typical.parts.total_ns), _statistic(typical, d.findings))
        yield _exposed(d)
    else:
        yield from _blocked(d)
    yield from _straggler(d.findings)
    yield from _peak_memory(d.memory)
    yield from _throughput(d)
    if d.utilisation.share is not None and d.utilisation.peak_flops_per_s is not None:
        peak = f"{d.utilisation.peak_flops_per_s / 1e12:,.3g} TFLOP/s"
        yield Tile("MFU", percent(d.utilisation.share), f"of {peak} in {d.utilisation.precision}")


def _statistic(typical: TypicalStep, findings: Sequence[Finding]) -> str:
    """Say what the figure is, and the mean where that is another: savings are of that one."""
    if typical.mean_ns is None:
        return typical.statistic
    has_savings = any(one.saving_ms_per_step for one in findings)
    mean = "savings refer to the mean," if has_savings else "mean"
    return f"{typical.statistic}; {mean} {duration(typical.mean_ns)}"


def _exposed(d: Diagnosis) -> Tile:
    assert d.steps.typical is not None
    typical, label = d.steps.typical, "Exposed communication"
    parts = typical.parts
    if parts.exposed_comm_ns is None:
        return Tile(label, "unknown", d.steps.method)
    share = percent(parts.exposed_comm_ns / max(parts.total_ns, 1))
    # Where a few long steps raise the mean, the median step has another share.
    of = f"{duration(parts.exposed_comm_ns)} of a step"
    if typical.mean_ns is not None:
        is_all = typical.settled_from is None
        of = (
            "of the measured time" if is_all else f"of the time from step {typical.settled_from} on"
        )
        if typical.long_steps:
            of += f" without {plural(typical.long_steps, 'long step')}"
    return Tile(label, share, f"{of}, mean over ranks{_least(d.findings)}")


def _blocked(d: Diagnosis) -> Iterator[Tile]:
    """Yield what is known of communication where no step is: of the record."""
    label, spans = "Blocked in communication", d.time_spans.spans
    held = [row.exposed_ns for row in d.communication]
    known = [ns for ns in held if ns is not None]
    if recorded_ns := sum(span.recorded_ns for span in spans):
        share = sum(span.waited_ns for span in spans) / recorded_ns
        yield Tile(label, percent(share), "of the recorded time, mean over ranks")
    elif known and len(known) == len(held):
        mean_ns = round(sum(known) / max(len(d.run.ranks), 1))
        whole = next((t.duration_ns for t in d.timelines if t.why == "recording"), None)
        length = "" if whole is None else f" of {duration(whole)}"
        yield Tile(label, duration(mean_ns), f"of the record{length}, mean over ranks")


def _least(findings: Sequence[Finding]) -> str:
    """Say why the delay by a straggler is more than the mean of what ranks wait."""
    failed = next((f for f in findings if f.rule == _LATE and f.status is Status.FAIL), None)
    if failed is None:
        return ""
    return f"; {named(failed.ranks)} wait{'s' if len(failed.ranks) == 1 else ''} least"


def _straggler(findings: Sequence[Finding]) -> Iterator[Tile]:
    found = [one for one in findings if one.rule == _LATE]
    failed = next((one for one in found if one.status is Status.FAIL), None)
    if failed is not None:
        yield Tile("Straggler", named(failed.ranks), failed.problem)
    elif any(one.status is Status.UNKNOWN for one in found):
        yield Tile("Straggler", "unknown", found[0].problem or reason(found[0].summary))
    elif found and found[0].status in (Status.PASS, Status.INFO):
        is_in_turn = found[0].status is Status.INFO
        why = (
            "different ranks arrive last in turn" if is_in_turn else "no rank is late in most steps"
        )
        yield _delaying_some_steps(findings) or Tile("Straggler", "none", why)


def _delaying_some_steps(findings: Sequence[Finding]) -> Tile | None:
    slow = next((one for one in findings if one.rule == _SLOW and one.ranks), None)
    if slow is None:
        return None
    return Tile("Straggler", f"{named(slow.ranks)}, in some steps", slow.problem)


def _peak_memory(rows: Sequence[RankMemory]) -> Iterator[Tile]:
    for counter, what in _DEVICE:
        if peaks := {row.rank: row.device[counter] for row in rows if counter in row.device}:
            rank = max(peaks, key=lambda one: peaks[one])
            yield Tile("Peak device memory", size(peaks[rank]), f"{what} on rank {rank}")
            return
    if hosts := {row.rank: row.peak_rss_bytes for row in rows if row.peak_rss_bytes}:
        rank = max(hosts, key=lambda one: hosts[one])
        yield Tile("Peak host memory", size(hosts[rank]), f"resident in rank {rank}")


def _throughput(d: Diagnosis) -> Iterator[Tile]:
    t = d.throughput
    if t.tokens_per_s is not None and t.tokens_per_step is not None:
        yield Tile("Tokens/s", figures(t.tokens_per_s), f"{t.tokens_per_step:,.0f} per step")
    elif t.samples_per_s is not None and t.samples_per_step is not None:
        yield Tile("Samples/s", figures(t.samples_per_s), f"{t.samples_per_step:,} per step")


def _hang(d: Diagnosis) -> Iterator[Tile]:
    assert d.hang is not None
    verdict = next((one for one in d.hang.verdicts if not one.is_healthy), d.hang.verdicts[0])
    suspects = named(verdict.ranks) if verdict.ranks else "unknown"
    yield Tile("Suspect", suspects, first_sentence(verdict.cause.text))
    if (call := verdict.operation) is not None:
        step = "" if call.step is None else f"step {call.step}"
        differs = verdict.mismatch == "op"
        site = "" if differs else call.call_site
        where = (f"number {call.seq:,} of group {call.group}", step, site)
        yield Tile("Operation", "differs" if differs else call.op, ", ".join(filter(None, where)))
    waiting = f"{named(verdict.waiting)} waiting" if verdict.waiting else ""
    since = "unknown" if verdict.waited_ns is None else duration(verdict.waited_ns)
    if waiting or verdict.waited_ns is not None:
        yield Tile("Stuck for", since, waiting)


def _snapshot(d: Diagnosis) -> Iterator[Tile]:
    row = max(d.snapshots, key=lambda one: one.reserved_bytes)
    yield Tile("Reserved", size(row.reserved_bytes), f"rank {row.rank}, the fullest")
    yield Tile("Stuck", size(row.stuck_bytes), _of(row, row.stuck_bytes, "free, but not usable"))
    yield Tile("Cached", size(row.cached_bytes), _of(row, row.cached_bytes, "returned on request"))
    if row.peak_holders:
        holder = max(row.peak_holders, key=lambda one: row.peak_holders[one])
        held = size(row.peak_holders[holder])
        yield Tile("Largest holder at the peak", held, frames.shortened(holder))
    if row.failed_bytes is not None:
        yield Tile("Failed request", size(row.failed_bytes), "out of memory")


def _of(row: SnapshotRow, part: int, what: str) -> str:
    return f"{percent(part / max(row.reserved_bytes, 1))} of reserved; {what}"


def _log(d: Diagnosis) -> Iterator[Tile]:
    failed = [one for one in d.findings if one.status is Status.FAIL]
    if failed or has_verdict(d.findings):
        yield Tile("Problems", f"{len(failed)}", by_severity(failed))
    if d.run.source:
        more = " or more" if len(d.run.source) == MOST_SOURCES else ""
        files = plural(len(d.run.source), "file")
        yield Tile("Read", f"{files}{more}", named(d.run.ranks))


def _device(d: Diagnosis) -> Iterator[Tile]:
    span = sum(row.span_ns for row in d.devices)
    parts = {
        "Compute": sum(row.compute_ns for row in d.devices),
        "Exposed communication": sum(row.exposed_comm_ns for row in d.devices),
        "Copies": sum(row.copies_ns for row in d.devices),
        "Idle": sum(row.idle_ns for row in d.devices),
    }
    whole = f"of {plural(len(d.devices), 'rank')}, the whole record"
    if not span or any(row.is_sampled for row in d.devices):
        yield Tile("Device time", "unknown", "events were left out of the files")
    else:
        yield from (Tile(name, percent(ns / span), whole) for name, ns in parts.items())
    yield from _straggler(d.findings)


def _collectives(d: Diagnosis) -> Iterator[Tile]:
    calls = sum(row.calls for row in d.communication)
    yield Tile("Collectives", f"{calls:,}", f"on {plural(len(d.run.ranks), 'rank')}")
    yield Tile("Step", "unknown", "no step is marked")
    yield from _straggler(d.findings)


_TILES: dict[Kind, Callable[[Diagnosis], Iterator[Tile]]] = {
    "training": _training,
    "hang": _hang,
    "snapshot": _snapshot,
    "log": _log,
    "device": _device,
    "collectives": _collectives,
}
