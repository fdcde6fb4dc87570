from __future__ import annotations

from msgspec.structs import replace

from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.diagnosis.build import diagnosis_of
from dsprof.diagnosis.sections.communication import expected_curves
from tests.factories.baseline import baseline
from tests.factories.trace import summary, zero_rank

MIB = 1 << 20


def test_transfers_are_listed_with_what_they_are_held_to():
    run = summary(*(zero_rank(rank, steps=12, comm_ms=2, nbytes=2 * MIB) for rank in (0, 1)))
    (row,) = diagnosis_of(run, {}).transfers
    assert (row.op, row.group, row.group_size, row.hosts) == ("all_reduce", "world", 2, 1)
    assert (row.calls, row.bytes, row.time_ns) == (10, 2 * MIB, 2_000_000)
    assert (row.expected_busbw, row.expected_from, row.is_judged) == (None, "", False)
    (row,) = diagnosis_of(run.with_part(BaselineCosts(baseline())), {}).transfers
    assert row.expected_busbw is not None
    assert abs(row.expected_busbw - 2 * MIB / (100_000 + 2 * MIB) * 1e9) < 1e3
    assert (row.expected_from, row.is_judged) == ("the baseline", True)


def test_what_is_expected_is_a_curve_over_all_sizes():
    run = summary(*(zero_rank(rank, steps=12, comm_ms=2, nbytes=2 * MIB) for rank in (0, 1)))
    (large,) = diagnosis_of(run, {}).transfers
    rows = [large, replace(large, bytes=5000), replace(large, op="broadcast")]
    assert expected_curves(run, rows) == []
    (curve,) = expected_curves(run.with_part(BaselineCosts(baseline())), rows)
    assert (curve.op, curve.group, curve.source) == ("all_reduce", "world", "the baseline")
    assert curve.bytes == [5000, *(1 << power for power in range(13, 22))]
    assert abs(curve.busbw[-1] - 2 * MIB / (100_000 + 2 * MIB) * 1e9) < 1e3


def test_a_run_of_one_rank_has_none():
    assert diagnosis_of(summary(zero_rank(0, 1)), {}).transfers == []
