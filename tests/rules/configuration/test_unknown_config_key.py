from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.configuration.unknown_config_key import UnknownConfigKey
from tests.factories.ds_config import ran, read, rows, with_status, zero

RULE = UnknownConfigKey()

IGNORED = {
    "compress_communication": "communication_data_type",
    "gradient_compression": "communication_data_type",
    "communication_compression": "communication_data_type",
    "tensor_model_parallel_size": "tensor_parallel.autotp_size",
    "fp32_allreduce": "communication_data_type",
    "zero_optimisation": "did you mean zero_optimization?",
    "gradient_clipp1ng": "did you mean gradient_clipping?",
    "comm_logger": "did you mean comms_logger?",
    "overlap_comm": "belongs under zero_optimization",
    "reduce_scatter": "belongs under zero_optimization",
    "autotp_size": "belongs under tensor_parallel",
}


@pytest.mark.parametrize(("key", "instead"), IGNORED.items())
@pytest.mark.parametrize("judge", [read, ran])
def test_a_key_that_is_ignored_fails_and_names_another(judge, key, instead):
    (finding,) = judge(RULE, {**zero(), key: True})
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert instead in rows([finding])[key]
    assert instead in finding.action


@pytest.mark.parametrize("judge", [read, ran])
def test_a_key_that_is_written_like_a_path_is_to_be_nested(judge):
    key = "zero_optimization.reduce_bucket_size"
    (finding,) = judge(RULE, {**zero(reduce_bucket_size="auto"), key: 5})
    assert finding.status is Status.FAIL
    assert finding.fix == "Nest it in its section"
    assert finding.evidence[0].rows[0][:2] == (key, "5")


@pytest.mark.parametrize("judge", [read, ran])
def test_what_trl_writes_for_a_reference_model_is_information(judge):
    """The user wrote none of them, and can change none."""
    names = "reduce", "stage3_param_persistence", "stage3_prefetch"
    ends = "bucket_size", "threshold", "bucket_size"
    keys = [f"zero_optimization.{n}_{end}" for n, end in zip(names, ends, strict=True)]
    wrong = {"gradient_acumulation_steps": 1}
    found = judge(RULE, {**zero(), **dict.fromkeys(keys, 5), **wrong})
    others, typo = sorted(found, key=lambda one: one.status is Status.FAIL)
    assert (typo.status, list(rows([typo]))) == (Status.FAIL, [*wrong])
    assert (others.status, list(rows([others]))) == (Status.INFO, keys)
    assert "No change is needed" in others.action


@pytest.mark.parametrize("key", ["zero_optimization.reduce_bucket_size", "my.own"])
def test_a_dotted_key_that_misses_nothing_is_information(key):
    (finding,) = read(RULE, {**zero(reduce_bucket_size=7), key: 5})
    assert (finding.status, list(rows([finding]))) == (Status.INFO, [key])


def test_keys_in_a_section_that_ignores_them_are_found():
    findings = read(RULE, {**zero(), "activation_checkpointing": {"partitioned_activations": True}})
    assert rows(findings) == {
        "activation_checkpointing.partitioned_activations": "did you mean partition_activations?"
    }


def test_keys_of_other_programs_are_information():
    (finding,) = read(RULE, {**zero(), "num-layers": 24, "comment": "for us"})
    assert finding.status is Status.INFO
    assert list(rows([finding])) == ["num-layers", "comment"]


def test_mistakes_and_strangers_are_told_apart():
    findings = read(RULE, {**zero(), "num-layers": 24, "zero_optimisation": {}})
    assert list(rows(with_status(findings, Status.FAIL))) == ["zero_optimisation"]
    assert list(rows(with_status(findings, Status.INFO))) == ["num-layers"]


@pytest.mark.parametrize(
    "more",
    [
        {"optimizer": {"type": "Adam", "params": {"lr": 1, "anything": 2}}},
        {"pipeline": {"seed_layers": True, "my_own": 1}},
        {"zero_optimization": {"stage": 2, "overlap_com": True}},  # refused, not ignored
        {"elasticity": {"enabled": False}},  # refused, not ignored
    ],
)
def test_what_may_hold_anything_or_stops_the_engine_passes(more):
    (finding,) = read(RULE, {**zero(), **more})
    assert finding.status is Status.PASS


@pytest.mark.parametrize(
    ("version", "status"), [("0.16.9", Status.FAIL), ("0.17.2", Status.PASS), ("", Status.PASS)]
)
def test_a_key_is_unknown_up_to_the_last_release_that_lacks_it(version, status):
    findings = read(RULE, {**zero(), "torch_autocast": {"enabled": True}}, version, similarity=0.4)
    assert findings[0].status is status


def test_a_key_that_was_not_retired_yet_passes():
    assert read(RULE, {**zero(), "nebula": {}}, "0.18.9")[0].status is Status.PASS


def test_the_threshold_decides_what_is_alike():
    written = {**zero(), "gradient_clipping_norm": 1.0}
    assert read(RULE, written, similarity=0.99)[0].status is Status.INFO
    assert read(RULE, written, similarity=0.86)[0].status is Status.FAIL


def test_sections_of_another_type_are_no_error():
    assert read(RULE, {"zero_optimization": True, "fp16": None, "timers": []})[0].status is (
        Status.PASS
    )
