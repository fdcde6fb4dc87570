"""part-filled-buckets: ZeRO sends buckets half empty, for the next gradient does not fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.flushes import Flushes, FlushKind, FlushSums
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.traffic import Traffic
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import percent, plural
from dsprof.rules.rule import Rule, RuleMeta

_ROWS = 8
_MOST_OF_BACKWARD = 0.25
"""A bucket with more of the gradients of a backward has little left to hide behind."""
_Rows = dict[FlushKind, FlushSums]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When buckets are part-filled, and when that is chronic."""

    fill: float = 0.5  # elements sent / capacity, of buckets that were sent because they were full
    flushes_per_step: float = 4.0  # of one rank; fewer are not worth a setting


class PartFilledBuckets(Rule):
    """Judges the buckets of ZeRO that were sent as full; the last of a backward may hold less.

    DDP closes a bucket after the gradient that fills it, and FSDP has no buckets.
    """

    meta = RuleMeta(
        id="part-filled-buckets",
        title="Buckets are well filled when they are sent",
        failing_title="Buckets are sent half empty",
        why="The buffer of a bucket is allocated at its full size. A bucket that is sent half "
        "empty wastes memory, and causes more and smaller collectives.",
        category="communication",
        order=270,
        needs=(Flushes, Steps, Traffic),
        min_steps=1,
        left_to="small-collectives",  # whose size is the one to set
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Compare what full buckets carry with what they hold."""
        zero = {k: s for k, s in run[Flushes].rows.items() if not k.library and k.capacity}
        full = {kind: sums for kind, sums in zero.items() if kind.cause == "full"}
        if not zero:
            text = "No bucket of ZeRO was recorded in full detail."
            yield self.meta.absent(text, is_unknown=run[Steps].is_counted)
        elif not full:
            text = "No bucket was sent because it was full: all gradients fit into one."
            yield self.meta.finding(Status.PASS, text)
        else:
            steps = max(run[Flushes].rank_steps, 1)
            elements = sum(kind.elements * sums.flushes for kind, sums in zero.items())
            in_backward = elements / steps / run[Traffic].reductions_per_step
            if not elements:
                yield self.meta.unknown("Unknown: the sizes of some buckets were not recorded.")
                return
            yield self._judged(full, steps, in_backward, thresholds)

    def _judged(
        self, full: _Rows, steps: int, in_backward: float, thresholds: Thresholds
    ) -> Finding:
        flushes = sum(sums.flushes for sums in full.values())
        fill = sum(_fill(kind) * sums.flushes for kind, sums in full.items()) / flushes
        capacity = max(kind.capacity for kind in full)
        verb = "is" if flushes == steps else "are"
        summary = (
            f"{plural(flushes / steps, 'bucket')} per step sent as full {verb} {percent(fill)} "
            f"filled on average: reduce_bucket_size is {capacity:,} elements."
        )
        if fill >= thresholds.fill or flushes / steps < thresholds.flushes_per_step:
            return self.meta.finding(Status.PASS, summary)
        elements = min(_advised(full, capacity), int(in_backward * _MOST_OF_BACKWARD))
        if elements <= capacity:
            return self.meta.finding(
                Status.INFO,
                f"{summary} Larger buckets would contain most of a backward, and no computation "
                "would be left to hide them.",
                confidence="medium",
            )
        return self.meta.finding(
            Status.FAIL,
            summary,
            severity=Severity.LOW,
            cause="ZeRO sends a bucket before the gradient that does not fit. If single "
            "gradients are nearly as large as the bucket, it is sent half empty.",
            action=f'Set "reduce_bucket_size" to {elements:,} elements: it then holds '
            "several gradients, and little is left empty. The buffer has this size, twice with "
            "overlap_comm.",
            problem=f"Buckets are sent {percent(fill)} full",
            config_patch={"zero_optimization": {"reduce_bucket_size": elements}},
            evidence=(_by_fill(full, steps),),
            confidence="medium",
        )


def _fill(kind: FlushKind) -> float:
    """Return how full a bucket was; a gradient larger than the bucket goes by itself."""
    return min(1.0, kind.elements / kind.capacity)


def _advised(full: _Rows, capacity: int) -> int:
    """Return four times the largest bucket of several gradients, which none of them exceeds.

    One that does not fit into a bucket goes by itself, whatever the size.
    """
    shared = (kind.elements for kind in full if kind.elements <= capacity)
    return max(4 * max(shared, default=0), 2 * capacity)


def _by_fill(full: _Rows, steps: int) -> Table:
    order = sorted(full.items(), key=lambda item: (-item[1].flushes, item[0]))
    return Table(
        columns=(
            Column("elements", "count"),
            Column("parameters", "count"),
            Column("filled", "share"),
            Column("flushes per step and rank", "count"),
        ),
        rows=tuple(
            (kind.elements, kind.parameters, _fill(kind), sums.flushes / steps)
            for kind, sums in order[:_ROWS]
        ),
        caption="Buckets that were sent because the next gradient did not fit",
    )
