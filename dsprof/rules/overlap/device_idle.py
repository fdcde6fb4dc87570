"""device-idle: the accelerator has nothing to do for much of the time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dsprof.analysis.aggregates.device import Device
from dsprof.analysis.aggregates.idle_causes import (
    ELSEWHERE,
    LAUNCHING,
    NAMES,
    NO_HOST,
    PYTHON,
    UNRECORDED,
    IdleCauses,
)
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import duration, percent
from dsprof.rules.causes import IDLE, SYNCHRONISED
from dsprof.rules.evidence.allocator import EXPAND
from dsprof.rules.reasons import EVENTS_MISSING, NO_DEVICE_TIMES
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.trace.device_activity import (
    ALLOCATION,
    DATA_LOADER,
    LOADING,
    SYNCHRONISATION,
    TRANSFER,
)

_START_UP = " Fewer than two steps were measured: start-up may be part of this."


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How much idleness matters, of the time between the first kernel and the last."""

    idle_share: float = 0.3
    severe_share: float = 0.6


class DeviceIdle:
    """Judges the mean over ranks, then each rank; waiting in a collective is no idleness."""

    meta = RuleMeta(
        id="device-idle",
        title="The device is busy most of the time",
        failing_title="The device is idle: the host does not keep it busy",
        why="An idle accelerator costs as much as a busy one.",
        category="overlap",
        order=140,
        needs=(Device, IdleCauses),
        left_to="late-rank",
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Compare idleness with the limit."""
        device = run[Device]
        if not device.ranks:
            yield self.meta.not_applicable(NO_DEVICE_TIMES)
        elif not device.complete:
            yield self.meta.unknown(EVENTS_MISSING)
        else:
            yield self._judged(device, run[IdleCauses], thresholds)

    def _judged(self, device: Device, causes: IdleCauses, thresholds: Thresholds) -> Finding:
        idle, exposed = device.share("idle_ns"), device.share("exposed_ns")
        shares = device.idle_shares()
        most_idle = max(shares, key=lambda rank: shares[rank])
        is_one = idle < thresholds.idle_share <= shares[most_idle]
        problem = f"The device is idle {percent(idle)} of {device.window}"
        summary = problem
        if is_one:
            idle = shares[most_idle]
            summary += f" (mean over ranks; {percent(idle)} on rank {most_idle})"
            problem = f"The device of rank {most_idle} is idle {percent(idle)} of {device.window}"
        summary += f"; {percent(exposed)} is exposed communication."
        if idle < thresholds.idle_share:
            return self.meta.finding(Status.PASS, summary + _before(device))
        severe = idle >= thresholds.severe_share and device.recurs
        largest, largest_ns = next(iter(causes.order), (UNRECORDED, 0))
        share = largest_ns / max(sum(causes.idle_ns.values()), 1)
        remedy = _remedy(largest, causes)
        return self.meta.finding(
            Status.FAIL,
            f"{summary} Host activity during idle time: {largest} "
            f"({percent(share)}).{_before(device)}{'' if device.recurs else _START_UP}",
            severity=Severity.HIGH if severe else Severity.MEDIUM,
            cause=remedy.cause,
            action=remedy.action,
            problem=problem,
            fix=remedy.fix,
            ranks=(most_idle,) if is_one else (),
            restates=SYNCHRONISED if largest == NAMES[SYNCHRONISATION] else IDLE,
            evidence=(_by_cause(causes), _by_rank(device)),
            confidence="medium" if remedy.is_sure and device.recurs else "low",
        )


def _by_cause(causes: IdleCauses) -> Table:
    whole = max(sum(causes.idle_ns.values()), 1)
    return Table(
        columns=(
            Column("host activity"),
            Column("idle, all ranks", "ns"),
            Column("share", "share"),
        ),
        rows=tuple((name, ns, ns / whole) for name, ns in causes.order),
        caption="What the host did while the device was idle",
    )


def _before(device: Device) -> str:
    """Name the start-up and warm-up that the verdict excludes."""
    rows = [rank.judged for rank in device.complete.values()]
    before_ns, idle_ns = (sum(getattr(r, n) for r in rows) for n in ("before_ns", "before_idle_ns"))
    if not all(row.steps for row in rows) or not before_ns:
        return ""
    each = f"{duration(before_ns / len(rows))} of start-up and warm-up"
    return f" Excluded: {each}, {percent(idle_ns / before_ns)} idle."


def _by_rank(device: Device) -> Table:
    windows = [(rank, row.judged, row.kernels) for rank, row in device.complete.items()]
    rows = sorted(windows, key=lambda item: -item[1].idle_ns)[:16]
    return Table(
        columns=(
            Column("rank"),
            Column("idle", "ns"),
            Column("compute", "ns"),
            Column("exposed communication", "ns"),
            Column("copies", "ns"),
            Column("kernels", "count"),
        ),
        rows=tuple(
            (rank, row.idle_ns, row.compute_ns, row.exposed_ns, row.copies_ns, kernels)
            for rank, row, kernels in rows
        ),
        caption="The most idle ranks first",
    )


class Remedy(NamedTuple):
    """One cause of idle time, and the action against it, at length and in a few words."""

    cause: str
    action: str
    fix: str
    is_sure: bool = True


REMEDIES = {
    NAMES[LOADING]: Remedy(
        "The host compiles or loads kernels, or captures graphs, in the middle of the run.",
        "Run more warm-up steps before measuring. If it recurs, set TORCH_LOGS=recompiles to see "
        "what recompiles, keep shapes constant or mark them dynamic, and capture graphs once.",
        "Keep shapes constant, and warm up before measuring",
    ),
    NAMES[ALLOCATION]: Remedy(
        "The host calls the runtime to allocate or free memory; freeing waits for the device.",
        f"Remove torch.cuda.empty_cache() where the step calls it, set {EXPAND}, reuse pinned "
        "buffers, and leave the allocator room to cache (use a smaller micro-batch).",
        "Keep allocations out of the step",
    ),
    NAMES[TRANSFER]: Remedy(
        "The host is blocked in copies between host and device.",
        "Copy from pinned memory with non_blocking=True, and keep values on the device.",
        "Copy from pinned memory with `non_blocking=True`",
    ),
    NAMES[SYNCHRONISATION]: Remedy(
        "The host waits for the device, so it launches nothing ahead.",
        "Remove .item(), .cpu(), prints of tensors and torch.cuda.synchronize() from the step; "
        "host-synchronisation names the calls.",
        "Remove `.item()`, `.cpu()` and `synchronize()` from the step",
    ),
    NAMES[DATA_LOADER]: Remedy(
        "The host waits for the next batch.",
        "Raise num_workers and prefetch_factor of the DataLoader, set pin_memory=True and "
        "persistent_workers=True, and move preprocessing out of the training process.",
        "Raise `num_workers` and `prefetch_factor` of the data loader",
    ),
    ELSEWHERE: Remedy(
        "The devices of the process take turns: while this one is idle, another one works.",
        "Use data parallelism with a process for each device (torchrun, FSDP), or a pipeline with "
        'several micro-batches; device_map="auto" is made for inference.',
        "Give each device a process of its own, or use a pipeline",
    ),
    LAUNCHING: Remedy(
        "The host launches kernels more slowly than the device executes them.",
        'Use larger micro-batches, fused optimizers, torch.compile(mode="reduce-overhead") or '
        "CUDA graphs.",
        "Launch fewer kernels: larger micro-batches, CUDA graphs",
    ),
    PYTHON: Remedy(
        "The host runs Python between operators.",
        "Look for loops, logging, tokenisation and garbage collection in the stacks of the "
        "profile, and move them out of the step.",
        "Move Python work (logging, tokenisation) out of the step",
    ),
    UNRECORDED: Remedy(
        "The profile shows no host call during most of the idle time: the host runs Python code, "
        "or waits for data, another process or the file system.",
        "Profile once with with_stack=True and ProfilerActivity.CPU, or with "
        "nsys --trace=cuda,osrt, to see what the host does.",
        "Profile once with `with_stack=True`, or nsys `--trace=osrt`",
        is_sure=False,
    ),
    NO_HOST: Remedy(
        "What the host did is unknown: the files contain no calls of the host.",
        "Profile once with ProfilerActivity.CPU and with_stack=True, or with "
        "nsys --trace=cuda,osrt.",
        "Profile the host, too",
        is_sure=False,
    ),
}

_ONCE_SHARE = 2 / 3
"""A call with this share of the time of a cause does not recur: in two steps each has half."""


def _remedy(name: str, causes: IdleCauses) -> Remedy:
    """Return what helps against a cause; of a single call it is unknown whether it recurs."""
    remedy = REMEDIES[name]
    once = min(causes.longest_ns.get(name, 0) / max(causes.idle_ns.get(name, 0), 1), 1.0)
    if once < _ONCE_SHARE or name == NAMES[LOADING]:
        return remedy
    return Remedy(
        f"The longest call of each rank takes {percent(once)} of this time: it may be start-up, or "
        "a rare event.",
        "Profile more steps, after a warm-up. If it recurs, "
        f"{remedy.action[0].lower()}{remedy.action[1:]}",
        "Profile more steps, after a warm-up",
        is_sure=False,
    )


RULE: Rule = DeviceIdle()
