from __future__ import annotations

import pytest

from dsprof.rules.memory.counters import FREED, RETRIES
from dsprof.rules.memory.emptied_device_cache import RULE
from dsprof.rules.rule import Status
from tests.factories.memory import on_device
from tests.factories.trace import rank_trace, said


def run(freed: list[int], retries: list[int] | None = None, rank: int = 0):
    tried = retries or [0] * len(freed)
    samples = zip(freed, tried, strict=True)
    return on_device(*({FREED: one, RETRIES: other} for one, other in samples), rank=rank)


def test_a_cache_emptied_in_each_step_fails():
    finding = said(RULE, run(list(range(0, 100, 10))), run([0] * 10, rank=1))
    assert finding.status is Status.FAIL
    assert finding.ranks == (0,)
    assert "10 segments a step" in finding.summary
    assert "empty_cache" in finding.cause


@pytest.mark.parametrize(
    "trace",
    [
        run([0, 50, *[60] * 10]),
        run([0] * 6 + [40] * 6),
        run(list(range(0, 100, 10)), list(range(10))),
    ],
    ids=["warm-up", "once", "after retries"],
)
def test_what_is_no_habit_passes(trace):
    assert said(RULE, trace).status is Status.PASS


def test_it_does_not_apply_to_cpus():
    assert said(RULE, rank_trace()).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize("trace", [on_device(None), run([0, 1, 2, 3]), on_device({FREED: 1})])
def test_without_counters_it_cannot_tell(trace):
    assert said(RULE, trace).status is Status.UNKNOWN
