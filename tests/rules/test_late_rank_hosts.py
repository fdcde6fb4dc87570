"""late-rank over several hosts whose collectives run on devices."""

from __future__ import annotations

from dsprof.rules.communication.late_rank import RULE
from dsprof.rules.rule import Status
from tests.factories.hosts import clock, device_run
from tests.factories.trace import said

HOSTS = [("a", clock()), ("b", clock(7000)), ("c", clock(-20))]


def third_late(by: float):
    return lambda rank, k: 10.0 + by * (rank == 2) + (k * 7 + rank * 3) % 5 / 10


def test_the_late_rank_of_another_host_is_named_with_the_bound():
    finding = said(RULE, *device_run(HOSTS, third_late(50)))
    assert (finding.status, finding.ranks) == (Status.FAIL, (2,))
    assert "arrivals compare to" in finding.summary
    assert finding.saving_ms_per_step is not None
    assert 40 < finding.saving_ms_per_step[1] < 65


def test_what_lies_below_the_bound_names_nobody():
    finding = said(RULE, *device_run(HOSTS, third_late(8), bound_ms=15))
    assert (finding.status, finding.ranks) == (Status.UNKNOWN, ())
    assert "would not be seen" in finding.summary


def test_ranks_that_arrive_together_pass_where_the_bound_is_narrow():
    assert said(RULE, *device_run(HOSTS, third_late(0))).status is Status.PASS


def test_one_host_is_no_better_than_the_place_of_its_devices():
    one = [("a", clock())] * 3
    assert said(RULE, *device_run(one, third_late(8), bound_ms=15)).status is Status.UNKNOWN
    assert said(RULE, *device_run(one, third_late(50), bound_ms=1)).ranks == (2,)
