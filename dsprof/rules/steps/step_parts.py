"""The parts of a step, as rules on series of steps name and compare them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.series import Floats
from dsprof.analysis.run.step_columns import StepColumns
from dsprof.findings.finding import Finding, Status
from dsprof.findings.wording import named
from dsprof.rules.rule import RuleMeta

PARTS = {
    "compute_ns": "forward, backward and optimizer step",
    "exposed_ns": "waits for communication",
    "copies_ns": "copies between host and device",
    "idle_ns": "device idle time",
    "other_ns": "time outside all phases",
    "rest_ns": "time not blocked in communication",
}
"""Parts of a step in a sentence."""
SAME_WORK = "Micro-steps, collectives and bytes per step did not change."
"""Longer sequences change none of them where only gradients are reduced."""
OF_ALL = " Unknown: whether batches or sequences got longer, which would change none of these."
"""Said where all ranks take longer for one of the `WORKING` parts."""
WORKING = ("compute_ns", "rest_ns")


def part_columns(columns: StepColumns) -> dict[str, Floats]:
    """Return the whole step and its parts, named for a table."""
    parts = {PARTS[name]: column for name, column in columns.parts.items()}
    return {"whole step": columns.total_ns, **parts}


def growing_part(growth: Mapping[str, float], whole_ns: float, share: float) -> str:
    """Return the part that explains most of a growth of `whole_ns`; "" if less than `share`."""
    part = max(growth, key=lambda name: growth[name], default="")
    return part if part and growth[part] >= share * whole_ns else ""


def few_in_turn(ranks: Sequence[int]) -> str:
    """Say that in most steps a few of these ranks work longer, other ones each time, or one."""
    if len(ranks) == 1:
        return (
            f"In most of these steps only {named(ranks)} works longer, and the others wait in "
            "their collectives."
        )
    return (
        f"In most of these steps only a few of {named(ranks)} work longer, not always the same, "
        "and the others wait in their collectives."
    )


def passed(meta: RuleMeta, text: str, series: Iterable[Sequence[int]], least: int) -> Finding:
    """Return the finding that nothing is wrong in series of so many steps: not all are kept."""
    seen = [number for numbers in series for number in numbers if len(numbers) >= least]
    return meta.finding(Status.PASS, f"{text} from step {min(seen):,} to {max(seen):,}.")


def too_few(meta: RuleMeta, steps: Steps, found: int, needed: int) -> Finding:
    """Return the finding that so few steps of the same ranks decide nothing."""
    if steps.ranks and not steps.throughout.ranks:
        return meta.unknown("Fewer than half of the ranks recorded the same steps.")
    return meta.too_few(found, needed)
