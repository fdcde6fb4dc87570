"""The contents of a report before it is laid out: shared by the page and the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.epochs import Epochs
from dsprof.diagnosis.parts.run import RunInfo
from dsprof.diagnosis.parts.steps import StepParts, Steps, TypicalStep
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
    began_s: int | None = None  # the first of them, in s since 1970

    @property
    def is_split(self) -> bool:
        """Whether any part could be measured; else only the whole is known."""
        return any(part.ns is not None for part in self.parts)


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
    """Give the step that a report speaks of, labelled by its statistic; empty where none is."""
    return typical_bar(steps.typical or TypicalStep(steps.total, "", 0))


def mean_note(steps: Steps) -> str:
    """Say which figures are means, where the mean step is another than the typical one."""
    if steps.typical is None or steps.typical.mean_ns is None:
        return ""
    mean = fmt.duration(steps.typical.mean_ns)
    early = steps.typical.settled_from is not None
    of = "means over all measured steps, early ones included" if early else "means"
    long = ", long ones excluded" if steps.typical.long_steps else ""
    return (
        f"Percentages are shares of the total time of these steps{long}. "
        f"Savings and other figures per step are {of}; the mean step is {mean}."
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
    known = (f"{key}_ns" for key in PARTS if key != "other")
    means = {name: _mean([getattr(row, name) for row in rows]) for name in known}
    # What is not known of each step is no part, and goes here.
    means["other_ns"] = total_ns - sum(ns or 0 for ns in means.values())
    mean = structs.replace(first, total_ns=total_ns, **means)
    return StepBar(
        label=str(first.step) if first is last else f"{first.step}-{last.step}",
        parts=step_parts(mean),
        total_ns=mean.total_ns,
        fastest_ns=_mean([row.fastest_total_ns for row in rows]),
        slowest_ns=_mean([row.slowest_total_ns for row in rows]),
        slowest_rank=first.slowest_rank if first is last else None,
        steps=len(rows),
        began_s=first.began_s,
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


def started(run: RunInfo) -> list[str]:
    """Return when the run started, as one more word; nothing if it is unknown."""
    return [f"{run.started[:19].replace('T', ' ')} UTC"] if run.started else []


def starts(run: RunInfo, epochs: Epochs) -> str:
    """Say how often the run was started, or made its process group again, as restarted-job does."""
    if any(row.end == "new process group" for row in epochs.rows):
        return f"The process group was created {fmt.plural(run.epochs, 'time')}."
    unrecorded = sum(row.unrecorded for row in epochs.rows)
    only = f"; {fmt.count(run.epochs)} of these starts are recorded" if unrecorded else ""
    return f"The run was started {fmt.plural(run.epochs + unrecorded, 'time')}{only}."
