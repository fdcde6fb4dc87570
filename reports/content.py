"""The contents of a report before it is laid out: shared by the page and the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dsprof.analysis.alignment.clocks import NO_TIME_LINE
from dsprof.diagnosis.model import (
    Diagnosis,
    Epochs,
    Quality,
    RunInfo,
    StepParts,
    Steps,
    TypicalStep,
)
from dsprof.findings import formatting as fmt
from dsprof.findings.finding import Finding, Status

PARTS = {
    "compute": "compute",
    "exposed_comm": "exposed communication",
    "copies": "copies",
    "idle": "idle",
    "other": "other",
}
"""Parts of a step in the order in which they are stacked, with their labels."""


Level = Literal["ok", "note", "flaw"]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a step, and its share of the whole step."""

    key: str
    label: str
    ns: int | None  # None: not measurable; its time is in `other`, if that is known
    share: float


@dataclass(frozen=True, slots=True)
class StepBar:
    """One step, or the mean of several neighbours."""

    label: str
    parts: tuple[Part, ...]
    total_ns: int
    fastest_ns: int | None
    slowest_ns: int | None
    slowest_rank: int | None
    steps: int = 1  # whose mean it is

    @property
    def is_split(self) -> bool:
        """Whether any part could be measured; else only the whole is known."""
        return any(part.ns is not None for part in self.parts)


@dataclass(frozen=True, slots=True)
class QualityLine:
    """One statement on how far the figures can be trusted.

    The levels are those of the rule data-quality: a flaw makes figures wrong or partial, where it
    fails; a note makes them less exact, where it remarks.
    """

    level: Level
    label: str
    text: str


def step_parts(step: StepParts) -> tuple[Part, ...]:
    """Split a step into its parts in stacking order.

    `other` is what the rest leaves over: where no other part was measured, it is not known either.
    """
    values = [getattr(step, f"{key}_ns") for key in PARTS]
    if all(value is None for key, value in zip(PARTS, values, strict=True) if key != "other"):
        values = [None] * len(values)
    whole_ns = max(step.total_ns, 1)
    shares = [(value or 0) / whole_ns for value in values]
    return tuple(map(Part, PARTS, PARTS.values(), values, shares))


def measured_steps(steps: Steps) -> set[int]:
    """Give the numbers of the steps that the total is the sum of."""
    return {row.step for row in steps.rows if row.is_measured and row.step is not None}


def typical_step(steps: Steps) -> StepBar:
    """Give the step that a report speaks of, labelled by its statistic.

    A diagnosis of an earlier dsprof has only the sum of its steps: then it is their mean.
    """
    if steps.typical is not None:
        return typical_bar(steps.typical)
    count = steps.measured_steps or 1
    parts = [
        replace(part, ns=None if part.ns is None else round(part.ns / count))
        for part in step_parts(steps.total)
    ]
    label = f"mean of {fmt.plural(steps.measured_steps, 'measured step')}"
    return StepBar(label, tuple(parts), round(steps.total.total_ns / count), None, None, None)


def mean_note(steps: Steps) -> str:
    """Say which figures are means, where the mean step is another than the typical one."""
    if steps.typical is None or steps.typical.mean_ns is None:
        return ""
    mean = fmt.duration(steps.typical.mean_ns)
    early = steps.typical.settled_from is not None
    of = "means over all measured steps, early ones included" if early else "means"
    return (
        "Percentages are shares of the total time of these steps. Savings and other figures per "
        f"step are {of}; the mean step is {mean}."
    )


def typical_bar(typical: TypicalStep) -> StepBar:
    """Give a typical step as a bar."""
    whole = typical.parts
    return StepBar(typical.statistic, step_parts(whole), whole.total_ns, None, None, None)


def step_bars(rows: Sequence[StepParts], at_most: int) -> list[StepBar]:
    """Give one bar a step; beyond `at_most` steps, one bar for several neighbours."""
    width = -(-len(rows) // at_most) or 1
    return [_step_bar(rows[i : i + width]) for i in range(0, len(rows), width)]


def _step_bar(rows: Sequence[StepParts]) -> StepBar:
    first, last = rows[0], rows[-1]
    total_ns = _mean([row.total_ns for row in rows]) or 0
    compute_ns = _mean([row.compute_ns for row in rows])
    exposed_ns = _mean([row.exposed_comm_ns for row in rows])
    copies_ns = _mean([row.copies_ns for row in rows])
    idle_ns = _mean([row.idle_ns for row in rows])
    mean = StepParts(
        step=first.step,
        compute_ns=compute_ns,
        exposed_comm_ns=exposed_ns,
        copies_ns=copies_ns,
        idle_ns=idle_ns,
        # What is not known of each step is no part, and goes here.
        other_ns=total_ns - sum(ns or 0 for ns in (compute_ns, exposed_ns, copies_ns, idle_ns)),
        total_ns=total_ns,
    )
    return StepBar(
        label=str(first.step) if first is last else f"{first.step}-{last.step}",
        parts=step_parts(mean),
        total_ns=mean.total_ns,
        fastest_ns=_mean([row.fastest_total_ns for row in rows]),
        slowest_ns=_mean([row.slowest_total_ns for row in rows]),
        slowest_rank=first.slowest_rank if first is last else None,
        steps=len(rows),
    )


def _mean(values: Sequence[int | None]) -> int | None:
    """Mean; None as soon as one value could not be measured."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known)) if known and len(known) == len(values) else None


def with_status(diagnosis: Diagnosis, *statuses: Status) -> list[Finding]:
    """Findings of these statuses, in the order of the diagnosis."""
    return [finding for finding in diagnosis.findings if finding.status in statuses]


def run_line(run: RunInfo, *, is_recorded: bool = True) -> list[str]:
    """The run in a few words each: set-up, ranks, hosts, steps.

    Other tools than dsprof (`is_recorded` is False) may not mark steps: no steps are not none.
    """
    ranks = fmt.plural(run.world_size or len(run.ranks), "rank")
    if run.world_size and len(run.ranks) < run.world_size:
        ranks = f"{fmt.count(len(run.ranks))} of {ranks}"
    hosts = fmt.plural(len(run.hosts), "host") if len(run.hosts) > 1 else "".join(run.hosts)
    steps = fmt.plural(run.steps, "step") if run.steps or (run.source and is_recorded) else ""
    epoch = f"epoch {run.epoch} of {run.epochs}" if run.epochs > 1 else ""
    state = "still running" if run.is_running else ""
    words = [run.setup, ranks, hosts, epoch, steps, state, run.backend, run.device]
    return [word for word in words if word]


def starts(run: RunInfo, epochs: Epochs) -> str:
    """Say how often the run was started, or made its process group again, as restarted-job does."""
    if any(row.end == "new process group" for row in epochs.rows):
        return f"The process group was created {fmt.plural(run.epochs, 'time')}."
    unrecorded = sum(row.unrecorded for row in epochs.rows)
    only = f"; {fmt.count(run.epochs)} of these starts are recorded" if unrecorded else ""
    return f"The run was started {fmt.plural(run.epochs + unrecorded, 'time')}{only}."


def quality_lines(diagnosis: Diagnosis) -> Iterator[QualityLine]:
    """Judge the data: what is missing, and how exact the rest is."""
    quality = diagnosis.quality
    yield _ranks_line(quality, diagnosis.run)
    yield from _own_lines(diagnosis) if quality.is_recorded else _foreign_lines(diagnosis)
    for hook in quality.hooks:
        where = f" ({fmt.named_ranks(hook.ranks)})" if hook.ranks else ""
        yield QualityLine("note", f"Hook {hook.name}", f"{hook.why}{where}")
    for stranger in quality.strangers:
        yield QualityLine("note", "Skipped file", stranger)
    for note in quality.notes:
        yield QualityLine("note", "Note", note)


def _own_lines(diagnosis: Diagnosis) -> Iterator[QualityLine]:
    """Judge what dsprof itself recorded, and what that cost."""
    quality = diagnosis.quality
    yield _ending_line(quality, diagnosis.run)
    yield _events_line(quality)
    if quality.waits:
        yield _waits_line(quality)
    yield _clock_line(quality, _limit(diagnosis, "clock_bound_ms"))
    whole = "step" if diagnosis.run.steps else "time"
    yield _cost_line(quality, whole, _limit(diagnosis, "cost_share"))


def _foreign_lines(diagnosis: Diagnosis) -> Iterator[QualityLine]:
    """Judge files of other tools, which count neither what they dropped nor what they cost."""
    quality = diagnosis.quality
    text = "written by other tools than dsprof; completeness unknown"
    yield QualityLine("note", "Files", text)
    if quality.unclean_ranks:
        which = fmt.named_ranks(quality.unclean_ranks)
        yield QualityLine("flaw", "End of the files", f"truncated for {which}")
    events = _events_line(quality)
    if events.level != "ok":
        yield events
    if quality.clock_method != NO_TIME_LINE:
        yield _clock_line(quality, _limit(diagnosis, "clock_bound_ms"))


def _limit(diagnosis: Diagnosis, name: str) -> float:
    """The threshold of the rule data-quality that is in force; above any value if none is."""
    limit = diagnosis.threshold("data-quality", name)
    return math.inf if limit is None else limit


def _ranks_line(quality: Quality, run: RunInfo) -> QualityLine:
    if run.world_size is None:
        present = f"{fmt.count(len(run.ranks))} present; world size unknown"
        return QualityLine("note", "Ranks", present)
    present = f"{fmt.count(len(run.ranks))} of {fmt.count(run.world_size)} present"
    if not quality.missing_ranks:
        if not quality.partial_ranks:
            return QualityLine("ok", "Ranks", present)
        partial = fmt.named_ranks(quality.partial_ranks)
        return QualityLine("note", "Ranks", f"{present}; only a part of the steps of {partial}")
    missing = fmt.named_ranks(quality.missing_ranks)
    what = "trace" if quality.is_recorded else "file"
    return QualityLine("flaw", "Ranks", f"{present}; no {what} of {missing}")


def _ending_line(quality: Quality, run: RunInfo) -> QualityLine:
    flaws = [f"{fmt.named_ranks(r)} ended by {what}" for what, r in quality.exceptions.items()]
    if quality.unclean_ranks:
        whose = "its trace" if len(quality.unclean_ranks) == 1 else "their traces"
        which = fmt.named_ranks(quality.unclean_ranks)
        flaws.append(f"{which} ended without closing {whose}; up to half a second is missing")
    if flaws:
        return QualityLine("flaw", "End of the run", "; ".join(flaws))
    if run.is_running:
        return QualityLine("note", "End of the run", "not reached: the run goes on")
    return QualityLine("ok", "End of the run", "every rank closed its trace")


def _unknown(quality: Quality, what: str) -> str:
    """Say what the missing trailers would have told; "" where none is missing."""
    if not quality.unclean_ranks:
        return ""
    return f"{what} unknown for {fmt.named_ranks(quality.unclean_ranks)}: no trailer"


def _waits_line(quality: Quality) -> QualityLine:
    if unknown := _unknown(quality, "unmatched ones are"):
        known = _counts((quality.waits, "recorded"), (quality.unmatched_waits, "unmatched"))
        return QualityLine("note", "Waits", "; ".join([*known, unknown]))
    matched = fmt.count(quality.waits - quality.unmatched_waits)
    text = f"{matched} of {fmt.count(quality.waits)} matched to their collective"
    return QualityLine("note" if quality.unmatched_waits else "ok", "Waits", text)


def _events_line(quality: Quality) -> QualityLine:
    lost = _counts((quality.dropped_events, "dropped"), (quality.broken_lines, "unreadable"))
    partial = [
        f"{fmt.plural(number, noun)} {what}"
        for number, noun, what in (
            (quality.open_collectives, "collective", "without a recorded end"),
            (quality.counted_only_steps, "step", "counted but not recorded in detail"),
        )
        if number
    ]
    if quality.is_recorded and (unknown := _unknown(quality, "dropped events are")):
        partial.append(unknown)
    text = "; ".join(lost + partial) or "complete, none dropped"
    return QualityLine("flaw" if lost else "note" if partial else "ok", "Events", text)


def _counts(*numbers: tuple[int, str]) -> list[str]:
    return [f"{fmt.count(number)} {what}" for number, what in numbers if number]


def _clock_line(quality: Quality, limit_ms: float) -> QualityLine:
    method = quality.clock_method or "clocks of the ranks not aligned"
    bound_ns = quality.clock_bound_ns
    is_exact = bound_ns is not None and bound_ns <= limit_ms * 1e6 and bool(quality.clock_method)
    if bound_ns:
        bound = fmt.duration(bound_ns)
        method = f"{method}; differences below {bound} between ranks are ignored"
    return QualityLine("ok" if is_exact else "note", "Clock", method)


def _cost_line(quality: Quality, whole: str, limit: float) -> QualityLine:
    if quality.training_cost_share is None:
        text = "not measurable: no rank recorded all of its steps and closed its trace"
        return QualityLine("note", "Cost of dsprof", text)
    text = (
        f"{fmt.share(quality.training_cost_share)} of the {whole} in training threads (estimate), "
        f"{fmt.share(quality.writer_cost_share)} in the writer thread"
    )
    is_small = quality.training_cost_share <= limit
    return QualityLine("ok" if is_small else "note", "Cost of dsprof", text)
