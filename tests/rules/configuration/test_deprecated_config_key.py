from __future__ import annotations

import pytest

from dsprof.findings.finding import Status
from dsprof.rules.configuration.deprecated_config_key import DeprecatedConfigKey
from tests.factories.ds_config import read, rows, zero

RULE = DeprecatedConfigKey()


def test_old_names_are_information_with_the_new_one():
    (finding,) = read(RULE, {**zero(2, cpu_offload=True), "bfloat16": {"enabled": True}})
    assert finding.status is Status.INFO
    assert "zero_optimization.cpu_offload and bfloat16 are deprecated" in finding.summary
    assert rows([finding]) == {
        "zero_optimization.cpu_offload": 'write offload_optimizer: {"device": "cpu"}',
        "bfloat16": "write bf16",
    }


@pytest.mark.parametrize(("written", "stage"), [(True, 1), (False, 0)])
def test_the_very_first_form_is_old(written, stage):
    (finding,) = read(RULE, {"zero_optimization": written})
    assert rows([finding]) == {"zero_optimization": f'write {{"stage": {stage}}}'}


def test_new_names_pass():
    assert read(RULE, zero(2, offload_optimizer={"device": "cpu"}))[0].status is Status.PASS
