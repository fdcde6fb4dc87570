"""unaccelerated-precision: matrices are multiplied in a precision that the hardware is slow in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.models import Models
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.wire_dtypes import WireDtypes
from dsprof.analysis.rank_sets import ranks_of
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Details, Finding, Severity, Status
from dsprof.findings.wording import capitalised
from dsprof.rules.hardware.precision import Precision, computed_in
from dsprof.rules.hardware.product_rates import ProductRates
from dsprof.rules.hardware.products import (
    CPU,
    HALVES,
    Support,
    fp32_products,
    is_run,
    supports,
    tf32_devices,
    tf32_is_forbidden,
)
from dsprof.rules.rule import Rule, RuleMeta


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Limits for calling another precision faster."""

    times: float = 1.5  # as many products in the same time
    products_share: float = 0.3  # of computation after the change, at least, that multiplies


class _Judged(NamedTuple):
    """The subject of a judgement."""

    facts: EnvironmentFacts
    precision: Precision
    rates: ProductRates
    steps: Steps
    thresholds: Thresholds

    def is_faster(self, other: str) -> bool:
        return self.rates.times(self.precision.name, other) >= self.thresholds.times

    def gains(self, other: str) -> Details:
        """Return the fields of a finding that say what `other` wins, and by what measurement."""
        name, share = self.precision.name, self.thresholds.products_share
        is_wider = other == "fp32" and not self.precision.by_autocast
        return {
            "evidence": self.rates.tables,
            "saving_ms_per_step": self.rates.saving(
                self.steps, name, other, share, is_wider=is_wider
            )
            if self.is_faster(other)
            else None,
            "exposed_per_saving": 0.0,
        }


class UnacceleratedPrecision(Rule):
    """Compares the precision that the model computes in with what the hardware multiplies fast."""

    meta = RuleMeta(
        id="unaccelerated-precision",
        title="The hardware accelerates the precision of the model",
        failing_title="The hardware does not accelerate the precision of the model",
        why="Most of training is matrix products. Without hardware support for their precision "
        "they take up to 100 times as long, and no library warns.",
        category="environment",
        order=610,
        judges_machine=True,
        needs=(BaselineCosts, Engines, EnvironmentFacts, Models, Steps, WireDtypes),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Judge each kind of device that the run computes on."""
        precision, facts = computed_in(run), run[EnvironmentFacts]
        judged = _Judged(facts, precision, ProductRates.of(run), run[Steps], thresholds)
        if not precision.name:
            yield self._unknown(facts, "the precision of the model")
        elif precision.name == "fp32":
            yield self._fp32(judged)
        else:
            yield self._half(judged)

    def _unknown(self, facts: EnvironmentFacts, what: str) -> Finding:
        """Say what is not recorded; of a configuration file nothing is."""
        return self.meta.absent(f"Unknown: {what} is not recorded.", is_unknown=is_run(facts))

    def _half(self, judged: _Judged) -> Finding:
        found = sorted(
            supports(judged.facts, judged.precision.name),
            key=lambda one: ("none", "converted", "", "units").index(one.level),
        )
        name = judged.precision.name
        if not found or not found[0].level:
            where = found[0].hardware if found else "the device"
            return self._unknown(judged.facts, f"whether {where} accelerates {name}")
        if found[0].level == "units":
            text = f"{found[0].hardware} has matrix units for {name}."
            return self.meta.finding(Status.PASS, capitalised(text))
        return self._slow(judged, found[0])

    def _slow(self, judged: _Judged, support: Support) -> Finding:
        name, hardware, level, ranks = judged.precision.name, *support
        other = _better(judged)
        measured = judged.rates.compared(name, other)
        is_slow = level == "none" or judged.is_faster(other)
        is_failure = is_slow and is_run(judged.facts)
        verb = "does not accelerate" if level == "none" else "converts to fp32 in each product"
        usual = _USUALLY if (hardware, level) == (CPU, "none") else ""
        return self.meta.finding(
            Status.FAIL if is_failure else Status.INFO,
            f"The model computes in {name}, which {hardware} {verb}{measured or usual}.",
            **Details(
                severity=_severity(support),
                cause=_cause(name, support),
                action=_action(judged.precision, other) if is_slow else _MEASURE,
                problem=f"{capitalised(hardware)} computes {name} slowly",
                config_patch=_patch(judged.precision, other) if is_slow else None,
                ranks=ranks_of(ranks),
                confidence="high" if level == "none" else "medium",
            )
            | judged.gains(other),
        )

    def _fp32(self, judged: _Judged) -> Finding:
        facts = judged.facts
        devices, products = tf32_devices(facts), fp32_products(facts)
        if devices is None or (devices and not products):
            return self._unknown(facts, "the device's TF32 support or setting")
        if not devices:
            text = "The model computes in fp32, and the hardware has no TF32."
            return self.meta.finding(Status.PASS, text)
        if products == "tf32":
            return self.meta.finding(Status.PASS, "Products of fp32 matrices use TF32.")
        is_faster, is_forbidden = judged.is_faster("tf32"), tf32_is_forbidden(facts)
        measured = judged.rates.compared("fp32", "tf32")
        return self.meta.finding(
            Status.FAIL if is_faster else Status.INFO,
            f"The parameters are fp32, and TF32 is off on {devices[0]}{measured}.",
            **Details(
                title="Products of fp32 matrices do not use TF32",
                severity=Severity.MEDIUM,
                cause=_FORBIDDEN if is_forbidden else _TF32_DEFAULT,
                action="Unset NVIDIA_TF32_OVERRIDE." if is_forbidden else _ALLOW_TF32,
                confidence="low",
            )
            | judged.gains("tf32"),
        )


def _better(judged: _Judged) -> str:
    """Return the fastest precision, where that was measured, else one that has units, else fp32."""
    rates = {n: r for n, r in judged.rates.rates.items() if n in (*HALVES, "fp32")}
    if judged.precision.name in rates:
        return max(rates, key=lambda name: rates[name])
    levels = {half: {s.level for s in supports(judged.facts, half)} for half in HALVES}
    return next((half for half in HALVES if levels[half] == {"units"}), "fp32")


def _severity(support: Support) -> Severity:
    is_grave = support.hardware == CPU and support.level == "none"
    return Severity.HIGH if is_grave else Severity.MEDIUM


def _cause(name: str, support: Support) -> str:
    if support.hardware != CPU:
        return f"{support.hardware} has no matrix units for {name}, and uses its fp32 units."
    if support.level == "converted":
        return f"The CPU has AVX-512, but neither avx512_{name} nor amx_{name}."
    return (
        f"oneDNN finds no instructions for {name} (bf16 needs AVX-512, fp16 AVX512-FP16), so torch "
        "uses its slow reference path."
    )


def _action(precision: Precision, other: str) -> str:
    scaled = " with loss scaling" if other == "fp16" else ""
    if not precision.key:
        return (
            f"Train in {other}{scaled} on this hardware: the dtype of the model, of FSDP's mixed "
            "precision, or of torch.autocast."
        )
    if other == "fp32":
        return f'Set "{precision.key}": {{"enabled": false}}: the model then computes in fp32.'
    return f"Enable {other}{scaled} in place of {precision.key}."


def _patch(precision: Precision, other: str) -> dict[str, Any] | None:
    if not precision.key:
        return None
    off = {precision.key: {"enabled": False}}
    return off if other == "fp32" else off | {other: {"enabled": True}}


_USUALLY = ": fp32 products are 20 to 100 times as fast"
_MEASURE = (
    "Compare a few steps in fp32, or measure with `dsprof bench` and give the report the baseline."
)
_TF32_DEFAULT = (
    "torch multiplies fp32 matrices in full fp32 unless the program allows TF32. Where the model "
    "computes under torch.autocast, this does not matter."
)
_FORBIDDEN = "NVIDIA_TF32_OVERRIDE=0 forbids TF32, whatever the program sets."
_ALLOW_TF32 = (
    'Call torch.set_float32_matmul_precision("high"), or compute in bf16. TF32 rounds the inputs '
    "of products to 10 bits of mantissa: compare losses once."
)
