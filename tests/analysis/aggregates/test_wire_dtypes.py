from __future__ import annotations

from dsprof.analysis.aggregates.wire_dtypes import WireDtypes, WireKind
from dsprof.analysis.rank.blocked_time import BlockedTime
from tests.factories.trace import MS, captured, group, rank_trace, step, summary, sync, zero_rank

MIB = 1 << 20


def test_rows_are_by_purpose_phase_and_format():
    def more(number, start):
        return [sync("all_gather", start, 2, phase="forward", fetch=9, step=number, dtype="x")]

    rows = summary(zero_rank(0, extra=more), zero_rank(1, extra=more))[WireDtypes].rows
    assert rows == {
        WireKind("gradients", "all_reduce", "backward", "float32", False): BlockedTime(
            8, 8 * MIB, 8, 40 * MS, 5.0 * MS
        ),
        WireKind("parameters", "all_gather", "forward", "x", False): BlockedTime(
            8, 8 * MIB, 8, 16 * MS, 2.0 * MS
        ),
    }


def test_spellings_of_one_family_on_one_rank_are_one_row():
    comm = [sync("allgather_", 1, 1, step=0), sync("_allgather_base_", 3, 2, step=0)]
    rows = summary(rank_trace(steps=[step(0, 0, 10)], comm=comm))[WireDtypes].rows
    (held,) = rows.values()
    assert held == BlockedTime(2, 2 * MIB, 1, 3 * MS, 3.0 * MS)


def test_groups_of_one_and_what_is_off_the_wire_are_left_out():
    alone = {1: group(1)}
    assert summary(zero_rank(groups=alone))[WireDtypes].rows == {}
    comm = [sync("all_reduce", 1, 1, step=0, on_wire=False)]
    assert summary(rank_trace(steps=[step(0, 0, 10)], comm=comm))[WireDtypes].rows == {}


def test_steps_in_counters_have_no_rows():
    assert summary(captured(window=range(0), steps=8))[WireDtypes].rows == {}


def test_merging_in_any_grouping_is_the_same():
    one, two, three = (
        summary(zero_rank(rank, 3, comm_ms=ms))[WireDtypes] for rank, ms in enumerate((3, 5, 4))
    )
    assert one.merge(two).merge(three) == one.merge(two.merge(three))
