from __future__ import annotations

import pytest

from dsprof.findings.finding import Status
from dsprof.rules.configuration.overridden_config_value import OverriddenConfigValue
from tests.factories.ds_config import ran, read, rows, zero

RULE = OverriddenConfigValue()


def test_another_value_in_force_is_information():
    effective = {"zero_optimization": {"stage": 2, "reduce_bucket_size": 7}, "train_batch_size": 8}
    written = {**zero(2, reduce_bucket_size=5), "train_batch_size": 4}
    (finding,) = ran(RULE, written, effective=effective)
    assert finding.status is Status.INFO
    assert rows([finding]) == {"zero_optimization.reduce_bucket_size": "7", "train_batch_size": "8"}


@pytest.mark.parametrize(
    ("written", "effective"),
    [
        (zero(2, reduce_bucket_size=5e8), {"zero_optimization": {"reduce_bucket_size": 500000000}}),
        (zero(3, reduce_bucket_size="auto"), {"zero_optimization": {"reduce_bucket_size": 5}}),
        (
            {**zero(3, reduce_bucket_size="auto"), "zero_optimization.reduce_bucket_size": 4},
            {"zero_optimization": {"reduce_bucket_size": 5}},
        ),
        (zero(3, stage3_max_live_parameters=5), {"zero_optimization": {"max_live_parameters": 5}}),
        (zero(2, cpu_offload=True), {"zero_optimization": {"cpu_offload": False}}),
        ({"communication_data_type": "BF16"}, {"communication_data_type": "torch.bfloat16"}),
        (zero(True), {"zero_optimization": {"stage": 1}}),
        ({"optimizer": {"type": "AdamW"}}, {"optimizer": {"type": "adamw"}}),
    ],
)
def test_the_same_in_other_words_passes(written, effective):
    assert ran(RULE, written, effective=effective)[0].status is Status.PASS


def test_another_optimizer_is_information():
    effective = {"optimizer": {"type": "lamb"}}
    (finding,) = ran(RULE, {"optimizer": {"type": "AdamW"}}, effective=effective)
    assert finding.summary == 'optimizer.type is "lamb".'


def test_a_key_of_stage_3_is_found_under_its_short_name():
    effective = {"zero_optimization": {"stage": 3, "prefetch_bucket_size": 1}}
    (finding,) = ran(RULE, zero(3, stage3_prefetch_bucket_size=5), effective=effective)
    assert finding.summary == "zero_optimization.stage3_prefetch_bucket_size is 1."


def test_of_a_file_it_does_not_apply():
    assert read(RULE, zero(2))[0].status is Status.NOT_APPLICABLE
