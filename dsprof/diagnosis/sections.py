"""The sections of a diagnosis, each from the aggregate that holds its facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import datetime, timezone
from statistics import mean, median
from typing import Any

import numpy as np

from dsprof.analysis.aggregates.communication import Communication, Kind, Row
from dsprof.analysis.aggregates.copies import Copies
from dsprof.analysis.aggregates.device import Device, KernelSum, RankDevice
from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.fetches import Fetches
from dsprof.analysis.aggregates.flushes import Flushes, FlushKind, FlushSums
from dsprof.analysis.aggregates.memory import Memory
from dsprof.analysis.aggregates.memory import RankMemory as MemoryFacts
from dsprof.analysis.aggregates.phases import Phases, PhaseSums
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Parts, Steps
from dsprof.analysis.aggregates.timelines import StepDetail, Timelines
from dsprof.analysis.collectives import SIZE_NOT_KNOWN
from dsprof.analysis.rank.steps import warmup_steps
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis import model
from dsprof.diagnosis.typical_step import typical_step
from dsprof.findings.wording import percent
from dsprof.rules.rule import Rule
from dsprof.trace.schema import MemorySample

_FLUSH_ROWS = 200
_WAIT_RANKS = 64
_SPAN_RANKS = 64
_WAIT_STEPS = 500


def run_info(summary: RunSummary) -> model.RunInfo:
    """Say which run it is."""
    run, header = summary[Run], summary[Run].first
    headers = [run.ranks[rank].header for rank in sorted(run.ranks)]
    return model.RunInfo(
        world_size=header.world_size if run.is_world_known else None,
        ranks=sorted(run.ranks),
        hosts=list(dict.fromkeys(one.host for one in headers)),
        steps=len(summary[Steps].numbers),
        backend=header.backend,
        device=header.device,
        versions=header.versions,
        run_key=header.run_key,
        started=_moment(min(one.started_epoch_ns for one in headers)),
        setup=_setup(summary[Engines]),
        source=_sources(run),
        parameters=_parameters(summary[Engines]),
    )


def steps(summary: RunSummary) -> model.Steps:
    """Split every step, their total, and the typical one."""
    facts = summary[Steps]
    lengths = [facts.parts[number].total_ns for number in facts.measured]
    measured, counted = set(facts.measured), set(facts.counted)
    return model.Steps(
        total=_parts(None, facts.total, is_counted=facts.is_counted),
        rows=[
            _parts(number, facts.parts[number], number in measured, number in counted)
            for number in facts.numbers
        ],
        warmup_steps=_warmup(facts),
        method=_method(summary),
        measured_steps=len(lengths),
        exposed_share=facts.exposed_share,
        estimated_share=facts.estimated_share,
        mean_total_ns=round(mean(lengths)) if lengths else None,
        median_total_ns=round(median(lengths)) if lengths else None,
        typical=typical_step(facts),
    )


def communication(summary: RunSummary) -> list[model.CommunicationRow]:
    """List collectives, those that cost most first."""
    rows = summary[Communication].rows.items()
    order = sorted(rows, key=lambda item: (-(item[1].exposed_ns or 0), -item[1].nbytes, item[0]))
    return [_communication_row(kind, row) for kind, row in order]


def devices(summary: RunSummary) -> list[model.DeviceRow]:
    """List what the accelerator of each rank did."""
    ranks = summary[Device].ranks
    return [_device_row(rank, ranks[rank]) for rank in sorted(ranks)]


def flushes(summary: RunSummary) -> list[model.FlushRow]:
    """List bucket flushes, those that cost most first; at most 200 kinds."""
    order = sorted(summary[Flushes].rows.items(), key=lambda item: (-item[1].exposed_ns, item[0]))
    is_timed = summary[Steps].total.exposed_ns is not None
    return [_flush_row(kind, sums, is_timed=is_timed) for kind, sums in order[:_FLUSH_ROWS]]


def fetches(summary: RunSummary) -> list[model.FetchRow]:
    """List parameter fetches."""
    return [
        model.FetchRow(
            **kind._asdict(),
            calls=sums.calls,
            calls_per_step=_per(sums.calls, sums.rank_steps),
            elements=sums.elements,
            wait_ns=sums.wait_ns,
        )
        for kind, sums in sorted(summary[Fetches].rows.items())
    ]


def copies(summary: RunSummary) -> list[model.CopyRow]:
    """List copies between host and device, those that take longest first."""
    rows = summary[Copies].rows.items()
    return [
        model.CopyRow(
            what=what,
            direction=direction,
            phase=phase,
            calls=sums.calls,
            calls_per_step=_per(sums.calls, sums.rank_steps),
            bytes=sums.nbytes,
            bytes_per_step=_per(sums.nbytes, sums.rank_steps),
            duration_ns=sums.duration_ns,
        )
        for (what, direction, phase), sums in sorted(
            rows, key=lambda item: (-item[1].duration_ns, item[0])
        )
    ]


def annotated(summary: RunSummary) -> list[model.AnnotationRow]:
    """List the spans that the program named, those that take longest first."""
    phases = summary[Phases]
    rows = {name: phases.of_all_ranks(name) for name in phases.annotated}
    is_timed = summary[Run].is_cpu and summary[Steps].total.exposed_ns is not None
    return [
        model.AnnotationRow(
            name=name,
            calls=sums.spans,
            calls_per_step=_per(sums.spans, sums.rank_steps),
            duration_ns=sums.duration_ns,
            exposed_ns=sums.exposed_ns if is_timed else None,
            rank_ns=_longest_ranks(phases.annotated[name]),
        )
        for name, sums in sorted(rows.items(), key=lambda item: (-item[1].duration_ns, item[0]))
    ]


def _longest_ranks(ranks: Mapping[int, PhaseSums]) -> dict[str, int]:
    """Return the time of a step by rank, the longest first, of up to 64."""
    order = sorted(ranks, key=lambda rank: (-ranks[rank].ns_per_step, rank))
    return {str(rank): round(ranks[rank].ns_per_step) for rank in order[:_SPAN_RANKS]}


def memory(summary: RunSummary) -> list[model.RankMemory]:
    """List the memory of each rank."""
    ranks = summary[Memory].ranks
    return [_memory(rank, ranks[rank]) for rank in sorted(ranks)]


def timelines(summary: RunSummary) -> list[model.Timeline]:
    """Show the worst and the median step of up to 16 ranks."""
    facts = summary[Timelines]
    chosen = [(why, number) for why, number in facts.choose() if facts.steps.get(number)]
    return [_timeline(number, why, facts.steps[number]) for why, number in chosen]


def waits(summary: RunSummary) -> model.WaitMatrix:
    """Lay out exposed communication by rank and step, of up to 64 ranks and 500 steps."""
    facts = summary[Steps]
    measurable = [rank for rank in sorted(facts.ranks) if facts.ranks[rank].exposed_ns is not None]
    ranks, numbers = measurable[:_WAIT_RANKS], facts.numbers[-_WAIT_STEPS:]
    matrix = []
    for rank in ranks:
        row = facts.ranks[rank]
        exposed = row.exposed_ns if row.exposed_ns is not None else np.zeros(0, np.int64)
        pairs = zip(row.number.tolist(), exposed.tolist(), row.counted.tolist(), strict=True)
        known = {n: ns for n, ns, is_counted in pairs if not (is_counted and row.on_device)}
        matrix.append([known.get(number, -1) for number in numbers])
    return model.WaitMatrix(
        ranks=ranks,
        steps=numbers if ranks else [],
        exposed_ns=matrix,
        left_out_ranks=len(measurable) - len(ranks),
    )


def rule_infos(rules: Iterable[Rule]) -> list[model.RuleInfo]:
    """Say of each rule what it is about."""
    metas = (rule.meta for rule in rules)
    return [
        model.RuleInfo(
            rule=meta.id,
            title=meta.title,
            why=meta.why,
            category=meta.category,
            package=meta.package,
        )
        for meta in metas
    ]


def thresholds(rules: Iterable[Rule], given: Mapping[str, Any]) -> list[model.ThresholdInfo]:
    """List the thresholds in force."""
    found = []
    for rule in rules:
        values = given.get(rule.meta.id, rule.thresholds)
        for field in fields(values):
            value, default = getattr(values, field.name), getattr(rule.thresholds, field.name)
            found.append(
                model.ThresholdInfo(
                    rule=rule.meta.id,
                    name=field.name,
                    value=list(value) if isinstance(value, tuple) else value,
                    is_default=value == default,
                )
            )
    return found


def _sources(run: Run) -> list[str]:
    """List the files read, rank by rank; one may be of several ranks."""
    facts = [run.ranks[rank] for rank in sorted(run.ranks)]
    return list(dict.fromkeys(path for one in facts for path in (one.path, *one.beside)))


def _parameters(engines: Engines) -> int | None:
    return engines.main.parameters or None if engines.main else None


def _setup(engines: Engines) -> str:
    if engines.main is None:
        return ""
    alike = Counter(
        f"ZeRO-{one.stage}, {one.precision}, accumulation {one.accumulation}"
        for one in engines.each
    )
    return "DeepSpeed " + "; ".join(
        f"{words} ({count} engines)" if count > 1 else words for words, count in alike.items()
    )


def _method(summary: RunSummary) -> str:
    facts, device = summary[Steps], summary[Device]
    ranks = facts.ranks.values()
    leads = bool(device.ranks) and not device.is_beside
    if leads and not device.complete:
        return "not measurable: events were left out of the files"
    if leads or all(rank.by_kernels for rank in ranks):
        return "device timeline: communication is exposed while no other kernel runs"
    on_device = all(rank.on_device for rank in ranks)
    if not summary[Run].is_cpu and not on_device:
        return f"not measurable: {_why_no_device_time(summary[Run])}"
    if any(rank.unwaited for rank in ranks):
        return (
            "not measurable: no wait for the collectives, or no device event after them, was "
            "recorded"
            if on_device
            else "not measurable: no wait for the asynchronous collectives was recorded"
        )
    if on_device:
        method = "device events: time for which the stream at the end of the step was blocked"
        if any(rank.profiled is not None for rank in ranks):
            method += "; the rest of the steps that a profiler saw is split by its kernels"
        return method
    method = "host clock: time blocked in synchronous calls and in waits"
    if facts.estimated_share:
        share = f"{percent(facts.estimated_share)} of it estimated"
        method += f" ({share}: DDP waits inside C++, at most this long)"
    if facts.is_counted:
        return f"{method}, from counters: no step after warm-up was recorded in full detail"
    if facts.counted:
        recorded = len(facts.numbers)
        method += f", over the {len(facts.measured)} of {recorded} steps recorded in full detail"
    if facts.total.compute_ns is None:
        method += "; compute time is unknown: no phases were recorded"
    return method


def _why_no_device_time(run: Run) -> str:
    if any(facts.captured for facts in run.ranks.values()):
        return "collectives run in CUDA graphs, whose replays are not recorded"
    return "the trace holds no times of the device"


def _warmup(facts: Steps) -> int:
    """Return how many of the first steps are left out for being warm-up."""
    usual = facts.numbers[: warmup_steps(len(facts.numbers))]
    return sum(number < min(facts.measured, default=number + 1) for number in usual)


def _parts(
    step: int | None, part: Parts, is_measured: bool = True, is_counted: bool = False
) -> model.StepParts:
    return model.StepParts(
        step=step,
        compute_ns=part.compute_ns,
        exposed_comm_ns=part.exposed_ns,
        copies_ns=part.copies_ns,
        idle_ns=part.idle_ns,
        other_ns=part.other_ns,
        total_ns=part.total_ns,
        micro_steps=part.micro_steps or None,
        slowest_rank=part.slowest_rank if part.total_ns else None,
        fastest_total_ns=part.fastest_ns or None,
        slowest_total_ns=part.slowest_ns or None,
        is_measured=is_measured,
        is_counted=is_counted,
        calls=part.calls,
        bytes=part.nbytes,
    )


def _communication_row(kind: Kind, row: Row) -> model.CommunicationRow:
    is_sized = kind.size_class != SIZE_NOT_KNOWN
    return model.CommunicationRow(
        **kind._asdict() | {"group_size": kind.group_size or None},
        calls=row.calls,
        bytes=row.nbytes if is_sized else None,
        calls_per_step=_per(row.calls, row.rank_steps),
        bytes_per_step=_per(row.nbytes, row.rank_steps) if is_sized else None,
        in_flight_ns=row.in_flight_ns,
        exposed_ns=row.exposed_ns,
        algbw=row.algbw,
        busbw=row.busbw(kind),
        site=row.sites[0][0] if row.sites else "",
        group_ranks=[list(ranks) for ranks in row.members],
    )


def _device_row(rank: int, facts: RankDevice) -> model.DeviceRow:
    return model.DeviceRow(
        rank=rank,
        span_ns=facts.span_ns,
        compute_ns=facts.compute_ns,
        communication_ns=facts.communication_ns,
        exposed_comm_ns=facts.exposed_ns,
        copies_ns=facts.copies_ns,
        idle_ns=facts.idle_ns,
        overlap=facts.overlap,
        named_comm_ns=facts.usual_ns,
        named_exposed_ns=facts.usual_exposed_ns,
        kernels=facts.kernels,
        communication_kernels=facts.communication_kernels,
        operations=facts.operations,
        recognised_beyond=[_kernel_row(sums) for sums in facts.beyond],
        unrecognised=[_kernel_row(sums) for sums in facts.unrecognised],
        is_sampled=facts.is_sampled,
    )


def _kernel_row(sums: KernelSum) -> model.KernelRow:
    return model.KernelRow(name=sums.name, calls=sums.calls, total_ns=sums.total_ns)


def _flush_row(kind: FlushKind, sums: FlushSums, *, is_timed: bool) -> model.FlushRow:
    return model.FlushRow(
        stage=kind.stage,
        cause=kind.cause,
        dtype=kind.dtype,
        elements=kind.elements,
        capacity=kind.capacity,
        fill=kind.elements / kind.capacity if kind.capacity else None,
        bytes=kind.nbytes,
        parameters=kind.parameters,
        slot=kind.slot if kind.slot >= 0 else None,
        flushes=sums.flushes,
        flushes_per_step=_per(sums.flushes, sums.rank_steps),
        wire_ops=sorted(sums.wire_ops),
        wire_calls=sums.wire_ops.total(),
        duration_ns=sums.duration_ns // sums.flushes,
        exposed_ns=sums.exposed_ns // sums.flushes if is_timed else None,
        library=kind.library,
        module=kind.module,
        bucket=kind.bucket if kind.bucket >= 0 else None,
    )


def _memory(rank: int, facts: MemoryFacts) -> model.RankMemory:
    at_steps = facts.at_steps
    return model.RankMemory(
        rank=rank,
        peak_rss_bytes=facts.peak_rss_bytes,
        last_rss_bytes=facts.last_rss_bytes,
        host_total_bytes=facts.host_total_bytes,
        least_host_available_bytes=facts.least_host_available_bytes,
        shm_total_bytes=facts.shm_total_bytes,
        least_shm_free_bytes=facts.least_shm_free_bytes,
        device=facts.device_max,
        steps=[sample.step for sample in at_steps],
        rss_bytes=[sample.rss_bytes for sample in at_steps],
        allocated_bytes=_device_column(at_steps, "allocated_bytes.all.current"),
        reserved_bytes=_device_column(at_steps, "reserved_bytes.all.current"),
    )


def _device_column(samples: Iterable[MemorySample], name: str) -> list[int]:
    values = [(sample.device or {}).get(name) for sample in samples]
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []


def _timeline(number: int, why: str, ranks: Mapping[int, StepDetail]) -> model.Timeline:
    start = min(detail.start_ns for detail in ranks.values())
    return model.Timeline(
        step=number,
        why=why,
        duration_ns=max(detail.end_ns for detail in ranks.values()) - start,
        bars=[
            model.Bar(
                rank=rank,
                lane=bar.lane,
                kind=bar.kind,
                start_ns=bar.start_ns - start,
                end_ns=bar.end_ns - start,
                label=bar.label,
            )
            for rank, detail in ranks.items()
            for bar in detail.bars
        ],
        left_out=sum(detail.left_out for detail in ranks.values()),
    )


def _per(total: int, count: int) -> float:
    return total / count if count else 0.0


def _moment(epoch_ns: int) -> str:
    if not epoch_ns:  # a log or a dump does not tell
        return ""
    try:
        moment = datetime.fromtimestamp(epoch_ns // 10**9, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return ""
    return moment.isoformat().replace("+00:00", "Z")
