"""A baseline as a part of a summary, and how its machine differs from that of the run."""

from __future__ import annotations

from collections.abc import Iterator

from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.baseline import Baseline, Machine
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.parts.communication import BaselineInfo
from dsprof.findings.wording import some

_VERSIONS = ("torch", "nccl", "cuda", "hip")
_INSTRUCTIONS = ("cpu_bf16", "cpu_fp16")


def with_baseline(
    summary: RunSummary, baseline: Baseline, source: str
) -> tuple[RunSummary, BaselineInfo]:
    """Put a baseline into a summary, unless it is of another backend or kind of device."""
    unfit = list(_unfit(baseline.machine, summary[Run]))
    info = BaselineInfo(
        source=source,
        is_used=not unfit,
        started=baseline.started,
        backend=baseline.machine.backend,
        hosts=list(baseline.machine.hosts),
        world_size=baseline.machine.world_size,
        contention=baseline.contention,
        differences=unfit or list(_differences(baseline.machine, summary)),
    )
    return (summary if unfit else summary.with_part(BaselineCosts(baseline))), info


def baseline_note(info: BaselineInfo) -> str:
    """Say in one sentence what the reader must know of a baseline; "" when nothing."""
    if not info.differences:
        return ""
    told = "; ".join(info.differences)
    if not info.is_used:
        return f"The baseline {info.source} was not used: {told}."
    return f"The baseline {info.source} was measured elsewhere: {told}."


def _unfit(machine: Machine, run: Run) -> Iterator[str]:
    header = run.first
    if header.backend and machine.backend != header.backend:
        yield f"its backend is {machine.backend}, that of the run {header.backend}"
    if machine.device != (device := header.device.split(":")[0]):
        yield f"its device is {machine.device}, that of the run {device}"


def _differences(machine: Machine, summary: RunSummary) -> Iterator[str]:
    run, facts = summary[Run], summary[EnvironmentFacts]
    if strange := sorted({*run.hosts.values()} - set(machine.hosts)):
        yield f"the run was on {some(strange)}, the baseline is of {some(machine.hosts)}"
    gpus = {name for names in facts.devices.get("gpus", ()) for name in names}
    if gpus and machine.gpus and gpus != set(machine.gpus):
        yield f"the run used {some(sorted(gpus))}, the baseline {some(sorted(set(machine.gpus)))}"
    for part, measured, names in (
        (facts.versions, machine.versions, _VERSIONS),
        (facts.precision, machine.precision, _INSTRUCTIONS),
    ):
        for name in names:
            ours, theirs = part.get(name, {}), measured.get(name)
            if ours and theirs and theirs not in ours:
                yield f"{name} was {theirs} there, {some(sorted(ours))} in the run"
