"""The rules for small gathers of ZeRO-3: after the step, and while the model runs."""

from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.small_parameter_gathers import (
    PersistentParameterGathers,
    TinyParameterGathers,
)
from dsprof.rules.knowledge.stage3 import PERSISTENCE
from dsprof.trace.schema import ParameterLayout
from tests.factories.trace import (
    assert_reached_at,
    engine,
    fetch,
    group,
    header,
    said,
    sync,
    zero_rank,
)

AFTER, TINY = PersistentParameterGathers(), TinyParameterGathers()

KIB = 1 << 10


def rank(rule, count: int = 40, blocked_ms: float = 0.25, nbytes: int = 8 * KIB, stage=3, **fields):
    """A rank whose steps gather so many small parameters where the rule looks for them."""
    zero = fields.pop("zero", {})
    phases = ("step",) if rule is AFTER else ("forward", "backward")

    def extra(number, start):
        return [
            sync(
                "all_gather",
                start + i * blocked_ms,
                blocked_ms,
                nbytes=nbytes,
                phase=phases[i % len(phases)],
                step=number,
                fetch=0 if rule is AFTER else 1,
            )
            for i in range(count)
        ]

    return zero_rank(stage=stage, extra=extra, engine=engine(stage, **zero), **fields)


def test_a_persistence_threshold_that_was_raised_fails():
    finding = said(AFTER, rank(AFTER, zero={PERSISTENCE: 1e6}))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert "40 parameters are all-gathered separately in each step; blocked time 10.0 ms" in (
        finding.summary
    )
    assert finding.config_patch == {"zero_optimization": {PERSISTENCE: 100_000}}
    low, high = finding.saving_ms_per_step
    assert low < (low + high) / 2 <= 10, "no more than they hold"
    assert finding.evidence[0].rows == (
        ("all_gather", "world", "step", "", 40.0, 8192, 10.0, 10.0),
    )


def test_thresholds_of_persistent_gathers_are_reached_at_their_value():
    assert_reached_at(
        AFTER, rank(AFTER, zero={PERSISTENCE: 1e6}), calls_per_step=40.0, held_share=0.1
    )


def test_a_persistence_threshold_that_was_lowered_fails():
    finding = said(TINY, rank(TINY, zero={PERSISTENCE: 0}))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert "40 all-gathers of 8.00 KiB on average per step and rank" in finding.summary
    assert finding.config_patch == {"zero_optimization": {PERSISTENCE: 100_000}}
    low, high = finding.saving_ms_per_step
    assert low < 5 < high, "half of them: those of one of the two passes"


def test_thresholds_of_tiny_gathers_are_reached_at_their_value():
    assert_reached_at(TINY, rank(TINY, zero={PERSISTENCE: 0}), calls_per_step=40.0, held_share=0.1)


@pytest.mark.parametrize("rule", [AFTER, TINY])
@pytest.mark.parametrize("zero", [{}, {PERSISTENCE: 100_000}, {PERSISTENCE: "auto"}])
def test_defaults_on_a_cpu_are_information(rule, zero):
    finding = said(rule, rank(rule, zero=zero))
    assert finding.status is Status.INFO
    assert finding.config_patch is None
    assert finding.saving_ms_per_step is None


@pytest.mark.parametrize(("rule", "value"), [(AFTER, 1e6), (TINY, 0)])
def test_what_costs_little_is_information(rule, value):
    assert said(rule, rank(rule, blocked_ms=0.01, zero={PERSISTENCE: value})).status is Status.INFO


@pytest.mark.parametrize("rule", [AFTER, TINY])
@pytest.mark.parametrize(
    "fields", [{"count": 10}, {"nbytes": 2 << 20}, {"groups": {1: group(1)}}, {"count": 0}]
)
def test_few_or_large_gathers_pass(rule, fields):
    assert said(rule, rank(rule, **fields)).status is Status.PASS


@pytest.mark.parametrize("rule", [AFTER, TINY])
def test_other_stages_do_not_apply(rule):
    assert said(rule, rank(rule, stage=2)).status is Status.NOT_APPLICABLE
    assert said(rule, zero_rank(engine=None)).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize(("rule", "value"), [(AFTER, 1e6), (TINY, 0)])
def test_time_that_was_not_measured_gives_no_failure(rule, value):
    head = header(device="cuda", backend="nccl")
    finding = said(rule, rank(rule, zero={PERSISTENCE: value}, head=head))
    assert finding.status is Status.INFO
    assert "ms" not in finding.summary


@pytest.mark.parametrize("rule", [AFTER, TINY])
def test_groups_of_other_ranks_are_not_added_up(rule):
    ranks = [rank(rule, rank=n, head=header(n, 2)) for n in range(2)]
    for number, trace in enumerate(ranks):
        trace.groups[1].label = f"pair {number}"
    assert said(rule, *ranks).evidence[0].rows[0][1] == "pair 0 and 1 more"
    assert said(rule, *ranks).summary.startswith("40 ")


@pytest.mark.parametrize(
    ("times", "status"), [(1, Status.INFO), (2, Status.FAIL), (4, Status.FAIL)]
)
def test_a_threshold_is_not_blamed_where_each_parameter_is_gathered_once(times, status):
    """Persistent ones are all-gathered once as well, each by itself after the step."""
    trace = rank(TINY, zero={PERSISTENCE: 0})
    (config,) = trace.engines.values()
    config.layout = ParameterLayout(gathered=1000)
    fetches = [
        fetch(number + 1, 100 * number, 1, step=number, phase="forward", elements=1000 * times)
        for number in range(len(trace.steps))
    ]
    trace.fetches.extend(fetches)
    finding = said(TINY, trace)
    assert finding.status is status
    assert (finding.config_patch is None) is (times == 1)
    if times == 4:
        low, high = finding.saving_ms_per_step
        assert (low + high) / 2 == pytest.approx(10 * 3 / 4, rel=0.1)
