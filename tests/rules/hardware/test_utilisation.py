"""Model FLOPs utilisation: the formula, and each thing without which it is unknown."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.baseline import Product
from dsprof.diagnosis.build import diagnosis_of
from dsprof.environment import EnvSnapshot
from dsprof.rules.hardware.utilisation import _peak_of, utilisation
from dsprof.trace.schema import Model
from tests.factories.baseline import baseline
from tests.factories.trace import group, header, summary, zero_rank

MODEL = Model(0, "DDP", 1_000_000, 1_000_000, "float32", tokens=[512, 512, 256, 256])
TOKENS = 384  # the mean


def run(model: Model | None = MODEL, *, products: bool = True, gpu: str = "", **fields):
    """Steps of 100 ms with two micro-steps of a model without DeepSpeed."""
    head = header(device="cuda:0", backend="nccl") if gpu else header()
    found = EnvSnapshot(gpus=[gpu] if gpu else [], precision={"fp32_products": "ieee"})
    given = {"engine": None, "head": head, "environment": found}
    given |= {"models": {0: model} if model else {}, **fields}
    trace = zero_rank(accumulation=2, **given)
    rate = Product(precision="fp32", width=512, time_ns=2 * 512**3 / 50)  # 50 GFLOP/s
    costs = BaselineCosts(baseline(products=(rate,) if products else ()))
    return summary(trace).with_part(costs)


def test_six_operations_for_each_parameter_and_token():
    found = utilisation(run())
    assert found.flops_per_step == 6 * 1_000_000 * TOKENS * 2
    assert found.share == pytest.approx(found.flops_per_step / (0.1 * 50e9))
    assert (found.precision, found.unknown) == ("fp32", "")


@pytest.mark.parametrize(
    ("name", "bf16", "fp16"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4, 989.4),
        ("NVIDIA H100 PCIe", 756, 756),
        ("NVIDIA H800 PCIe", 756, 756),
        ("NVIDIA H200 NVL", 835.5, 835.5),
        ("NVIDIA GH200 480GB", 989.4, 989.4),
        ("NVIDIA B200", 2250, 2250),
        ("NVIDIA GB200", 2500, 2500),
        ("NVIDIA L40", 181, 181),
        ("NVIDIA L40S", 362, 362),
        ("Tesla V100S-PCIE-32GB", None, 130),
        ("Tesla V100-SXM2-32GB", None, 125),
        ("AMD Instinct MI250X", 191.5, 191.5),
    ],
)
def test_peaks_are_those_of_the_data_sheet_without_sparsity(name, bf16, fp16):
    peaks = tuple(_peak_of(name, precision) for precision in ("bf16", "fp16"))
    assert peaks == (bf16 and bf16 * 1e12, fp16 * 1e12)


def test_a_frozen_parameter_has_no_gradient():
    assert utilisation(run(replace(MODEL, trained=0))).flops_per_step == 4e6 * TOKENS * 2


def test_the_peak_of_a_device_is_that_of_its_data_sheet():
    found = utilisation(run(replace(MODEL, autocast="bfloat16"), gpu="NVIDIA A100-SXM4-80GB"))
    assert (found.precision, found.peak_flops_per_s) == ("bf16", 312e12)
    assert utilisation(run(gpu="NVIDIA A100-SXM4-80GB")).peak_flops_per_s == 19.5e12


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (run(None), "parameters and tokens of a step are not recorded"),
        (run(models={0: MODEL, 1: replace(MODEL, model=1)}), "several models are trained"),
        (run(replace(MODEL, parameters=0, library="FSDP1")), "not recorded with FSDP1"),
        (run(replace(MODEL, has_experts=True)), "only some of the experts"),
        (run(replace(MODEL, tokens=[512, 0])), "tokens of a step are not recorded"),
        (run(replace(MODEL, dtype="int8")), "the precision in which the model computes"),
        (run(groups={1: group(role="tensor")}), "divided over ranks (tensor)"),
        (run(steps=0), "no step was measured"),
        (run(products=False), "pass a baseline of dsprof bench"),
        (run(gpu="NVIDIA X999"), "the peak of NVIDIA X999 in fp32 is unknown"),
        (run(gpu="NVIDIA A100-SXM4-80GB MIG 1g.5gb"), "is unknown"),
    ],
)
def test_without_one_of_them_it_is_unknown(found, why):
    assert why in utilisation(found).unknown
    assert utilisation(found).share is None


def test_the_diagnosis_says_it_either_way():
    known, unknown = (diagnosis_of(one, {}).utilisation for one in (run(), run(None)))
    assert known.text.startswith("Model FLOPs utilisation: 92 % of 0.05 TFLOP/s in fp32")
    assert "384 tokens per micro-step" in known.text
    assert (unknown.share, unknown.flops_per_step, unknown.peak_flops_per_s) == (None, None, None)
    assert unknown.text == (
        "Model FLOPs utilisation: unknown (parameters and tokens of a step are not recorded)."
    )
