"""Steps split into their parts: in total and on each rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, median

import msgspec
import numpy as np

from dsprof.analysis.aggregates.device import Device, RankDevice
from dsprof.analysis.aggregates.phases import Phases, PhaseSums
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.step_starts import StepStarts
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.rank.steps import warmup_steps
from dsprof.analysis.step_rows import Parts
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.parts import filled
from dsprof.diagnosis.parts import steps as parts
from dsprof.diagnosis.per_step import per_rank_step
from dsprof.diagnosis.typical_step import typical_step
from dsprof.findings.finding import Finding
from dsprof.findings.wording import percent

_WAIT_RANKS = 64
_SPAN_RANKS = 64
_WAIT_STEPS = 500


def split_steps(summary: RunSummary, findings: Iterable[Finding]) -> parts.Steps:
    """Split every step, their total, and the typical one."""
    facts = summary[Steps]
    lengths = [facts.parts[number].total_ns for number in facts.measured]
    measured, counted = set(facts.measured), set(facts.counted)
    starts = summary[StepStarts]
    began_s = dict(zip(starts.number.tolist(), starts.began_s.tolist(), strict=True))
    return parts.Steps(
        total=_parts(None, facts.total, is_counted=facts.is_counted),
        rows=[
            msgspec.structs.replace(
                _parts(number, facts.parts[number], number in measured, number in counted),
                began_s=began_s.get(number),
            )
            for number in facts.numbers
        ],
        warmup_steps=_warmup(facts),
        method=_method(summary),
        measured_steps=len(lengths),
        rank_steps=facts.rank_steps or None,
        exposed_share=facts.exposed_share,
        estimated_share=facts.estimated_share,
        mean_total_ns=round(mean(lengths)) if lengths else None,
        median_total_ns=round(median(lengths)) if lengths else None,
        typical=typical_step(facts, findings),
    )


def waits(summary: RunSummary) -> parts.WaitMatrix:
    """Lay out exposed communication by rank and step, of up to 64 ranks and 500 steps.

    Of more ranks, those that wait least, among whom stragglers are, and those that wait longest.
    """
    facts = summary[Steps]
    numbers = facts.numbers[-_WAIT_STEPS:]
    if not numbers:
        return parts.WaitMatrix()
    measurable = [rank for rank in sorted(facts.ranks) if facts.ranks[rank].exposed_ns is not None]
    ranks = _extremes(measurable, facts)
    matrix = []
    for rank in ranks:
        row = facts.ranks[rank]
        exposed = row.exposed_ns if row.exposed_ns is not None else np.zeros(0, np.int64)
        pairs = zip(row.number.tolist(), exposed.tolist(), row.counted.tolist(), strict=True)
        known = {n: ns for n, ns, is_counted in pairs if not (is_counted and row.on_device)}
        matrix.append([known.get(number, -1) for number in numbers])
    return parts.WaitMatrix(
        ranks=ranks,
        steps=numbers if ranks else [],
        exposed_ns=matrix,
        left_out_ranks=len(measurable) - len(ranks),
    )


def _extremes(ranks: Sequence[int], facts: Steps) -> list[int]:
    if len(ranks) <= _WAIT_RANKS:
        return [*ranks]
    measured = np.array([*facts.measured], np.int64)
    waits_ns: dict[int, float] = {}
    for rank in ranks:
        row = facts.ranks[rank]
        exposed = row.exposed_ns if row.exposed_ns is not None else np.zeros(0, np.int64)
        known = exposed[np.isin(row.number, measured)]
        waits_ns[rank] = float(known.mean()) if known.size else 0.0
    order = sorted(ranks, key=lambda rank: (waits_ns[rank], rank))
    half = _WAIT_RANKS // 2
    return sorted([*order[:half], *order[-half:]])


def devices(summary: RunSummary) -> list[parts.DeviceRow]:
    """List what the accelerator of each rank did."""
    ranks = summary[Device].ranks
    return [_device_row(rank, ranks[rank]) for rank in sorted(ranks)]


def annotated(summary: RunSummary) -> list[parts.AnnotationRow]:
    """List the spans that the program named, those that take longest first."""
    phases = summary[Phases]
    rows = {name: phases.of_all_ranks(name) for name in phases.annotated}
    is_timed = summary[Run].is_cpu and summary[Steps].total.exposed_ns is not None
    return [
        parts.AnnotationRow(
            name=name,
            calls=sums.spans,
            calls_per_step=per_rank_step(sums.spans, sums.rank_steps),
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
        share = percent(facts.estimated_share)
        method += f" ({share} of it is an upper bound: DDP waits inside C++)"
    if facts.is_counted:
        return f"{method}, from counters: no step after warm-up was recorded in full detail"
    if facts.counted:
        recorded = len(facts.numbers)
        method += f", over the {len(facts.measured)} of {recorded} steps recorded in full detail"
    if facts.total.compute_ns is None:
        method += "; compute time is unknown: forward or backward is not marked"
    return method


def _why_no_device_time(run: Run) -> str:
    if any(facts.captured for facts in run.ranks.values()):
        return "collectives run in CUDA graphs, whose replays are not recorded"
    return "the trace has no device times"


def _warmup(facts: Steps) -> int:
    """Return how many of the first steps are left out for being warm-up."""
    usual = facts.numbers[: warmup_steps(len(facts.numbers))]
    return sum(number < min(facts.measured, default=number + 1) for number in usual)


def _parts(
    step: int | None, part: Parts, is_measured: bool = True, is_counted: bool = False
) -> parts.StepParts:
    return filled(
        parts.StepParts,
        part,
        step=step,
        exposed_comm_ns=part.exposed_ns,
        micro_steps=part.micro_steps or None,
        slowest_rank=part.slowest_rank if part.total_ns else None,
        fastest_total_ns=part.fastest_ns or None,
        slowest_total_ns=part.slowest_ns or None,
        is_measured=is_measured,
        is_counted=is_counted,
        bytes=part.nbytes,
        ranks=part.ranks or None,
    )


def _device_row(rank: int, facts: RankDevice) -> parts.DeviceRow:
    return filled(
        parts.DeviceRow,
        facts,
        rank=rank,
        exposed_comm_ns=facts.exposed_ns,
        named_comm_ns=facts.usual_ns,
        named_exposed_ns=facts.usual_exposed_ns,
    )


SECTIONS = {
    "annotations": annotated,
    "devices": devices,
    "waits": waits,
}
