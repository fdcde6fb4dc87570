from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.baseline import Product
from dsprof.config.deepspeed import WrittenConfig
from dsprof.diagnosis.lint import lint
from dsprof.environment import EnvSnapshot
from dsprof.findings.finding import Severity, Status
from dsprof.rules.environment.unaccelerated_precision import UnacceleratedPrecision
from dsprof.rules.hardware.product_rates import ProductRates
from dsprof.rules.runner import judge
from dsprof.trace.schema import Model
from tests.factories.baseline import baseline, machine
from tests.factories.trace import engine, header, said, summary, sync, zero_rank

RULE = UnacceleratedPrecision()

AVX2 = {"cpu_instructions": "avx2", "cpu_bf16": "no", "cpu_fp16": "no"}
AVX512 = {"cpu_instructions": "avx2 avx512bw", "cpu_bf16": "yes", "cpu_fp16": "no"}
AMX = {"cpu_instructions": "avx2 avx512bw avx512_bf16 amx_bf16", "cpu_bf16": "yes"}
OFF, ON = {"fp32_products": "ieee"}, {"fp32_products": "tf32"}


def configured(precision: str):
    config = engine()
    for section in (config.written, config.effective):
        del section["bf16"]
        section[precision] = {"enabled": True}
    config.parameter_dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(precision, "float32")
    return config


def on_cpu(precision: str = "bf16", facts: dict[str, str] = AVX2, **fields):
    found = EnvSnapshot(precision=dict(facts))
    return zero_rank(engine=configured(precision), environment=found, **fields)


def on_gpu(name: str, precision: str = "bf16", facts: dict[str, str] | None = None, **variables):
    found = EnvSnapshot(gpus=[name] if name else [], precision=facts or {}, variables=variables)
    head = header(device="cuda:0", backend="nccl")
    return zero_rank(engine=configured(precision), environment=found, head=head)


def measured(trace, **gflops: float):
    """What the rule says with a baseline of these rates."""
    width = 512
    products = tuple(
        Product(precision=name, width=width, time_ns=2 * width**3 / rate)
        for name, rate in gflops.items()
    )
    run = summary(trace).with_part(BaselineCosts(baseline(products=products)))
    (finding,) = judge(run, [RULE])
    return finding


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_reference_path_of_the_cpu_fails_with_a_patch(precision):
    finding = said(RULE, on_cpu(precision))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert f"computes in {precision}, which this CPU does not accelerate" in finding.summary
    assert finding.config_patch == {precision: {"enabled": False}}
    assert finding.action.startswith(f'Set "{precision}": {{"enabled": false}}: the model then')
    assert (finding.saving_ms_per_step, finding.ranks) == (None, ())


def test_a_baseline_tells_how_many_times_and_what_is_saved():
    finding = measured(on_cpu(comm_ms=5), fp32=74, bf16=1.7)
    assert "fp32 products are 43.5 times as fast" in finding.summary
    # 85 ms of computation, of which 0.3 x 44 / (0.3 x 44 + 0.7) multiplies at least; 5 ms exposed.
    low, high = finding.saving_ms_per_step
    assert low < 0.95 * 85 * (1 - 1 / 43.5) - 5 < 85 * (1 - 1 / 43.5) < high
    assert [row[0] for row in finding.evidence[0].rows] == ["fp32", "bf16"]


def test_a_baseline_of_a_cpu_with_other_instructions_is_not_used():
    product = Product(precision="fp32", width=512, time_ns=2e6)
    other = baseline(
        products=(product, Product(precision="bf16", width=512, time_ns=8e6)),
        machine=machine(precision={"cpu_bf16": "yes"}),
    )
    run = summary(on_cpu()).with_part(BaselineCosts(other))
    (finding,) = judge(run, [RULE])
    assert finding.evidence == ()
    assert "20 to 100 times" in finding.summary


def test_conversion_fails_only_where_fp32_was_measured_to_be_faster():
    assert said(RULE, on_cpu("bf16", AVX512)).status is Status.INFO
    assert "has AVX-512, but neither" in said(RULE, on_cpu("bf16", AVX512)).cause
    assert "finds no instructions for bf16" in said(RULE, on_cpu("bf16", AVX2)).cause
    slower = measured(on_cpu("bf16", AVX512), fp32=120, bf16=30)
    assert (slower.status, slower.severity) == (Status.FAIL, Severity.MEDIUM)
    assert measured(on_cpu("bf16", AVX512), fp32=120, bf16=110).status is Status.INFO


def test_instructions_of_its_own_pass():
    assert said(RULE, on_cpu("bf16", AMX)).status is Status.PASS


def test_traces_without_the_facts_are_unknown():
    assert said(RULE, on_cpu("bf16", {})).status is Status.UNKNOWN
    assert said(RULE, zero_rank()).status is Status.UNKNOWN


def test_only_the_ranks_on_such_a_cpu_are_named():
    head = header(1)
    other = on_cpu("bf16", AMX, rank=1, head=head)
    assert said(RULE, on_cpu(), other).ranks == (0,)


@pytest.mark.parametrize(
    ("name", "precision", "status"),
    [
        ("Tesla V100-SXM2-32GB", "bf16", Status.FAIL),
        ("Tesla V100-SXM2-32GB", "fp16", Status.PASS),
        ("Tesla T4", "bf16", Status.FAIL),
        ("Tesla P100-PCIE-16GB", "fp16", Status.FAIL),
        ("NVIDIA A100-SXM4-80GB", "bf16", Status.PASS),
        ("NVIDIA H100 80GB HBM3", "fp16", Status.PASS),
        ("gfx906", "fp16", Status.FAIL),
        ("gfx942", "bf16", Status.PASS),
        ("NVIDIA X999", "bf16", Status.UNKNOWN),
        ("", "bf16", Status.UNKNOWN),
    ],
)
def test_devices_by_name(name, precision, status):
    assert said(RULE, on_gpu(name, precision)).status is status


def test_a_volta_is_sent_to_fp16_and_a_pascal_to_fp32():
    assert said(RULE, on_gpu("Tesla V100-SXM2-32GB")).config_patch == {
        "bf16": {"enabled": False},
        "fp16": {"enabled": True},
    }
    assert said(RULE, on_gpu("Tesla P100-PCIE-16GB")).config_patch == {"bf16": {"enabled": False}}


@pytest.mark.parametrize(("capability", "status"), [("7.5", Status.FAIL), ("8.7", Status.PASS)])
def test_a_name_that_is_not_known_is_judged_by_its_capability(capability, status):
    trace = on_gpu("NVIDIA X999", facts={"capability": capability})
    assert said(RULE, trace).status is status


@pytest.mark.parametrize(
    ("name", "facts", "variables", "status"),
    [
        ("NVIDIA H100 80GB HBM3", OFF, {}, Status.INFO),
        ("NVIDIA H100 80GB HBM3", ON, {}, Status.PASS),
        ("NVIDIA H100 80GB HBM3", ON, {"NVIDIA_TF32_OVERRIDE": "0"}, Status.INFO),
        ("NVIDIA H100 80GB HBM3", {}, {}, Status.UNKNOWN),
        ("Tesla V100-SXM2-32GB", OFF, {}, Status.PASS),
        ("gfx942", OFF, {}, Status.PASS),
        ("NVIDIA X999", OFF, {}, Status.UNKNOWN),
    ],
)
def test_tf32(name, facts, variables, status):
    assert said(RULE, on_gpu(name, "fp32", facts, **variables)).status is status


def test_tf32_fails_where_it_was_measured_to_be_faster():
    finding = measured(on_gpu("NVIDIA H100 80GB HBM3", "fp32", OFF), fp32=50e3, tf32=400e3)
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert "tf32 products are 8 times as fast" in finding.summary


def test_fp32_on_a_cpu_passes():
    assert said(RULE, on_cpu("fp32")).status is Status.PASS


def test_autocast_of_deepspeed_counts_as_what_it_casts_to():
    trace = on_cpu("fp32")
    trace.engines[1].written["torch_autocast"] = {"enabled": True, "dtype": "torch.bfloat16"}
    assert said(RULE, trace).config_patch == {"torch_autocast": {"enabled": False}}


def test_fsdp_computes_in_what_it_gathers():
    def gathers(number, start):
        return [sync("all_gather", start, 1, fetch=3, step=number, dtype="bfloat16")]

    trace = zero_rank(engine=None, extra=gathers, environment=EnvSnapshot(precision=AVX2))
    finding = said(RULE, trace)
    assert (finding.status, finding.config_patch) == (Status.FAIL, None)
    assert finding.action.startswith("Train in fp32")


@pytest.mark.parametrize(
    ("model", "status"),
    [
        (Model(0, "DDP", dtype="bfloat16"), Status.FAIL),
        (Model(0, "DDP", dtype="float32", autocast="bfloat16"), Status.FAIL),
        (Model(0, "DDP", dtype="float32"), Status.PASS),
        (Model(0, "DDP", dtype="int8"), Status.UNKNOWN),
    ],
)
def test_ddp_computes_in_the_dtype_of_its_parameters_or_of_autocast(model, status):
    found = EnvSnapshot(precision=AVX2)
    assert said(RULE, zero_rank(engine=None, environment=found, models={0: model})).status is status


def test_several_models_compute_in_the_precision_that_they_share():
    fp32, bf16 = (Model(0, "DDP", dtype=dtype) for dtype in ("float32", "bfloat16"))
    for other, status in ((fp32, Status.PASS), (bf16, Status.UNKNOWN)):
        trace = zero_rank(engine=None, models={0: fp32, 1: other})
        assert said(RULE, trace).status is status


def test_a_loop_whose_dtype_is_not_recorded_is_unknown():
    trace = zero_rank(engine=None, environment=EnvSnapshot(precision=AVX2))
    assert said(RULE, trace).status is Status.UNKNOWN


def linted(machine: EnvSnapshot):
    config = WrittenConfig({"fp16": {"enabled": True}}, {}, True)
    return next(f for f in lint(config, "0.19.8", machine=machine) if f.rule == RULE.meta.id)


def test_a_configuration_is_judged_by_accelerators_only():
    accelerator = linted(EnvSnapshot(gpus=["Tesla P100-PCIE-16GB"], precision=dict(AVX2)))
    assert accelerator.status is Status.INFO
    assert "P100" in accelerator.summary
    assert linted(EnvSnapshot(precision=dict(AVX2))).status is Status.NOT_APPLICABLE


def test_tf32_is_no_precision_to_train_in():
    finding = measured(on_cpu("bf16"), bf16=2, fp32=80, tf32=900)
    assert "fp32 products are 40 times as fast" in finding.summary
    assert finding.config_patch == {"bf16": {"enabled": False}}


def test_a_rate_without_the_other_says_nothing_of_how_many_times():
    rates = ProductRates({"fp32": 4e9, "bf16": 1e9})
    assert rates.times("bf16", "fp32") == 4
    assert rates.times("bf16", "fp16") == rates.times("fp16", "bf16") == 0
    assert rates.compared("bf16", "fp16") == ""


def test_the_fastest_measured_precision_is_advised():
    finding = measured(on_cpu("bf16"), bf16=2, fp32=20, fp16=80)
    assert "fp16 products are 40 times as fast" in finding.summary
    assert finding.config_patch == {"bf16": {"enabled": False}, "fp16": {"enabled": True}}
