from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.host_waits import HostWaits
from tests.factories.device_run import device_rank, synchronisations
from tests.factories.trace import summary, zero_rank


def test_stops_of_measured_steps_are_counted():
    found = summary(device_rank(stalls=synchronisations(3, 1.5)))[HostWaits]
    assert found.calls_per_step == 3
    assert found.idle_ms_per_step == pytest.approx(4.5)
    assert found.rank_steps == 4, "two of six are warm-up"


def test_a_host_clock_shows_none():
    assert summary(zero_rank())[HostWaits] == HostWaits()
    assert HostWaits().calls_per_step == HostWaits().idle_ms_per_step == 0


def test_merging_in_any_grouping_is_the_same():
    one, two, three = (HostWaits(n, n + 1, 10 * n) for n in range(3))
    assert one.merge(two).merge(three) == one.merge(two.merge(three)) == HostWaits(3, 6, 30)
