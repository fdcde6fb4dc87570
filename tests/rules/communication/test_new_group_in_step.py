from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.new_group_in_step import NewGroupInStep
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import assert_reached_at, group, header, said, sync, zero_rank

RULE = NewGroupInStep()


def rank(every: int = 1, size: int = 2, steps: int = 12, calls: int = 1, **fields) -> RankTrace:
    """A rank that calls a new group in one of `every` steps, `calls` times."""

    def extra(number, start):
        at = {"step": number, "group": 2 + number, **fields}
        used = range(calls) if number % every == 0 else ()
        return [sync("all_reduce", start + 3 * i, 1, seq=i + 1, **at) for i in used]

    new = {2 + n: group(size, id=2 + n, key=f"new{n}") for n in range(steps)}
    trace = zero_rank(extra=extra, steps=steps, groups={1: group(2), **new})
    own = trace.collectives.group == 1
    trace.collectives.seq[own] = range(1, int(own.sum()) + 1)
    return trace


def test_a_new_group_in_each_step_fails():
    finding = said(RULE, rank(calls=2))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert finding.summary.startswith("100 % of the steps use a process group for the first time")
    assert finding.problem == "1 new process group per step"
    assert finding.saving_ms_per_step is None


def test_its_threshold_is_reached_at_its_value():
    assert_reached_at(RULE, rank(every=2), step_share=0.5)


@pytest.mark.parametrize("fields", [{"every": 6}, {"size": 1}, {"on_wire": False}, {"peer": 1}])
def test_others_pass(fields):
    assert said(RULE, rank(**fields)).status is Status.PASS


def test_few_steps_are_no_verdict():
    assert said(RULE, rank(steps=8)).status is Status.UNKNOWN


def test_a_run_of_one_rank_is_not_applicable():
    trace = rank()
    trace.header = header(0, 1)
    assert said(RULE, trace).status is Status.NOT_APPLICABLE
