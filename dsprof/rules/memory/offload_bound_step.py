"""offload-bound-step: copies between device and host take a large share of the step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.copies import Copies
from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import duration, percent
from dsprof.rules.evidence.calls import share_of_step
from dsprof.rules.rule import Rule, RuleMeta

_SECTIONS = ("offload_optimizer", "offload_param")
_ROWS = 8


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How much of a step copies may take."""

    copied_share: float = 0.25


class OffloadBoundStep(Rule):
    """Weighs the calls that copy; fails only where a key slows the copies down."""

    meta = RuleMeta(
        id="offload-bound-step",
        title="Offload copies take little of the step",
        failing_title="Offload copies block the step",
        why="Offloaded state crosses the bus in every step: gradients to the host, parameters "
        "back. Unless copies overlap with computation, the device is idle meanwhile.",
        category="memory",
        order=340,
        needs=(Copies, Engines, Run, Steps),
        min_steps=2,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Compare the time in copies with the step."""
        rows, steps = run[Copies].rows, run[Steps]
        if not _offloaded(run[Engines]) and not rows:
            yield self.meta.not_applicable("Nothing is offloaded to the host.")
            return
        if not rows:
            yield self.meta.unknown("Unknown: no copy was recorded.")
            return
        ms = sum(s.duration_ns / s.rank_steps for s in rows.values() if s.rank_steps) / 1e6
        share = share_of_step(ms, steps)
        summary = f"Copy calls take {duration(ms * 1e6)} per step ({percent(share)})."
        if share < thresholds.copied_share:
            yield self.meta.finding(Status.PASS, summary)
        else:
            yield self._judged(run, summary)

    def _judged(self, run: RunSummary, summary: str) -> Finding:
        unpinned = [] if run[Run].is_cpu else _unpinned(run[Engines])
        patch = {"zero_optimization": {section: {"pin_memory": True} for section in unpinned}}
        return self.meta.finding(
            Status.FAIL if unpinned else Status.INFO,
            summary,
            severity=Severity.MEDIUM,
            cause=(
                f"pin_memory is false in {' and '.join(unpinned)}: unpinned memory is copied twice "
                "and cannot overlap with computation."
            )
            if unpinned
            else "Offloading saves device memory at the cost of these copies.",
            action='Set "pin_memory" to true.'
            if unpinned
            else "Offload less if memory allows: only the optimizer, a part of it (ratio in "
            "offload_optimizer at stage 3), or nothing at a higher stage. Larger "
            "micro-batches and more accumulation compute more for each copy of parameters.",
            config_patch=patch if unpinned else None,
            evidence=(_by_kind(run[Copies]),),
            confidence="medium",
        )


def _offloaded(engines: Engines) -> list[str]:
    """Return the sections of the configuration that send something to the host."""
    devices = {section: _section(engines, section).get("device") for section in _SECTIONS}
    return [name for name, device in devices.items() if str(device).lower() in ("cpu", "nvme")]


def _unpinned(engines: Engines) -> list[str]:
    return [
        name
        for name in _offloaded(engines)
        if _section(engines, name).get("pin_memory", True) is False
    ]


def _section(engines: Engines, name: str) -> dict[str, object]:
    section = engines.zero(name)
    return section if isinstance(section, dict) else {}


def _by_kind(copies: Copies) -> Table:
    order = sorted(copies.rows.items(), key=lambda item: (-item[1].duration_ns, item[0]))
    return Table(
        columns=(
            Column("what"),
            Column("direction"),
            Column("phase"),
            Column("calls per step", "count"),
            Column("bytes per step", "bytes"),
            Column("takes per step", "ms"),
        ),
        rows=tuple(
            (
                what,
                direction,
                phase,
                round(sums.calls / sums.rank_steps, 1),
                sums.nbytes // sums.rank_steps,
                sums.duration_ns / sums.rank_steps / 1e6,
            )
            for (what, direction, phase), sums in order[:_ROWS]
        ),
        caption="On a device: time for which the calls blocked the host",
    )
