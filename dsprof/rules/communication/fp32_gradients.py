"""fp32-gradients: gradients of a model in half precision travel in full precision."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.wire_dtypes import WireDtypes
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import size
from dsprof.rules.evidence.calls import (
    AnyCalls,
    blocked_ms,
    bytes_per_step,
    calls_per_step,
    least_blocked_ms,
    share_of_step,
)
from dsprof.rules.hardware.precision import gathered_in
from dsprof.rules.reasons import NO_DETAILED_REDUCTION
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.savings import omitting_saves

_FULL = "float32"
_ASKED_FOR = ("fp32", "float32", "torch.float32")
_SMALL_BYTES = 1 << 20
"""Below this mean size a collective takes its latency, which half of the bytes do not shorten."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When the other half of the bytes matters."""

    wide_share: float = 0.5  # of the bytes of gradients
    saved_share: float = 0.01  # of the step; less is of low severity


class FP32Gradients(Rule):
    """Compares the dtype of gradients on the wire with that of the parameters."""

    meta = RuleMeta(
        id="fp32-gradients",
        title="Gradients are reduced in the parameters' dtype",
        failing_title="Gradients of a half-precision model are reduced in fp32",
        why="A gradient computed in 16 bits gains no precision when it is sent in 32, and "
        "takes twice as long.",
        category="communication",
        order=190,
        needs=(Engines, Steps, WireDtypes),
        needs_sizes=True,
        min_steps=1,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Judge by the engine's precision, or by what parameters are gathered in."""
        engines, wire = run[Engines], run[WireDtypes]
        gradients = wire.chosen(lambda kind: kind.purpose == "gradients")
        wide = {kind: row for kind, row in gradients.items() if kind.dtype == _FULL}
        precision = engines.precision if engines.main else gathered_in(wire)
        if not gradients:
            yield self.meta.absent(NO_DETAILED_REDUCTION, is_unknown=run[Steps].is_counted)
        elif not precision:
            text = "No DeepSpeed engine and no all-gather shows the precision of parameters."
            yield self.meta.not_applicable(text)
        elif precision == "fp32":
            yield self.meta.not_applicable("The model itself is in fp32.")
        elif bytes_per_step(wide) >= thresholds.wide_share * bytes_per_step(gradients):
            yield self._wide(engines, precision, wide, run[Steps], thresholds)

    def _wide(
        self,
        engines: Engines,
        precision: str,
        wide: AnyCalls,
        steps: Steps,
        thresholds: Thresholds,
    ) -> Finding:
        cost_ms, saving, nbytes = (
            blocked_ms(wide),
            omitting_saves(least_blocked_ms(wide), blocked_ms(wide), 1 / 2),
            bytes_per_step(wide),
        )
        asked = engines.setting("communication_data_type") in _ASKED_FOR
        matters = saving is None or share_of_step(saving[1], steps) >= thresholds.saved_share
        if nbytes < _SMALL_BYTES * calls_per_step(wide):
            saving, matters = None, False
        evidence = Table(
            columns=(
                Column("gradients in"),
                Column("calls per step", "count"),
                Column("bytes per step", "bytes"),
                Column("blocked per step", "ms"),
            ),
            rows=(
                ("fp32, as recorded", round(calls_per_step(wide), 1), round(nbytes), cost_ms),
                (precision, None, round(nbytes / 2), None),
            ),
        )
        return self.meta.finding(
            Status.FAIL if asked else Status.INFO,
            f"{size(nbytes)} of gradients per step are reduced in fp32; the model is in "
            f"{precision}.",
            severity=Severity.MEDIUM if matters else Severity.LOW,
            cause=f"communication_data_type is {engines.setting('communication_data_type')}."
            if asked
            else (_ENGINE_CAUSE if engines.main else _FSDP_CAUSE) + _OFTEN_MEANT,
            action=f'Set "communication_data_type" to "{precision}", or delete the key. Sums over '
            "many ranks are then rounded to 16 bits: compare losses once."
            if asked
            else _ENGINE_ACTION
            if engines.main
            else _FSDP_ACTION,
            problem=f"Gradients are reduced in fp32, not {precision}",
            config_patch={"communication_data_type": precision} if asked else None,
            evidence=(evidence,),
            saving_bytes_per_step=round(nbytes / 2),
            saving_ms_per_step=saving,
            saving_from="gradients",
            confidence="high" if asked else "medium",
        )


_ENGINE_CAUSE = "Gradients are kept or summed in fp32: data_types.grad_accum_dtype."
_FSDP_CAUSE = "Gradients are summed in fp32: reduce_dtype of FSDP's mixed precision."
_OFTEN_MEANT = " This is often intended: sums over many ranks stay accurate."
_ENGINE_ACTION = "If losses allow it, leave out data_types.grad_accum_dtype."
_FSDP_ACTION = (
    "If losses allow it, leave reduce_dtype of MixedPrecisionPolicy (FSDP2) or MixedPrecision "
    "(FSDP1) at that of the parameters."
)
