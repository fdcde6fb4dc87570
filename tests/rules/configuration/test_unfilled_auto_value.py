from __future__ import annotations

from dsprof.findings.finding import Status
from dsprof.rules.configuration.unfilled_auto_value import UnfilledAutoValue
from tests.factories.ds_config import ran, read, rows, zero

RULE = UnfilledAutoValue()


def test_values_to_be_filled_in_are_information():
    (finding,) = read(RULE, {**zero(reduce_bucket_size="auto"), "bf16": {"enabled": "auto"}})
    assert finding.status is Status.INFO
    assert list(rows([finding])) == ["zero_optimization.reduce_bucket_size", "bf16.enabled"]
    assert 'for "auto" it silently takes' in finding.action


def test_of_an_engine_that_runs_the_default_in_force_is_shown():
    effective = {"zero_optimization": {"stage": 3, "prefetch_bucket_size": 50_000_000}}
    written = zero(3, stage3_prefetch_bucket_size="auto")
    (finding,) = ran(RULE, written, effective=effective)
    assert "DeepSpeed took its own default" in finding.summary
    assert rows([finding])["zero_optimization.stage3_prefetch_bucket_size"].startswith("50000000")


def test_what_means_auto_in_deepspeed_itself_passes():
    assert read(RULE, zero(2, zenflow={"update_interval": "auto"}))[0].status is Status.PASS


def test_values_pass():
    assert read(RULE, zero(2, reduce_bucket_size=5))[0].status is Status.PASS
