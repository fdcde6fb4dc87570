from __future__ import annotations

import numpy as np
import pytest

from dsprof.analysis.rank.blocked_time import BlockedTime, blocked_rows
from tests.factories.trace import MS, header, issued, rank_trace, step, sync


def held(trace, steps=2):
    table = trace.collectives
    every = np.arange(len(table))
    return blocked_rows(trace, every, [table.op], steps, lambda row: table.words[table.op[row]])


def test_sums_by_the_columns():
    comm = [sync("barrier", 1, 2, nbytes=0), sync("barrier", 5, 4, nbytes=0), sync("recv", 9, 1)]
    found = held(rank_trace(comm=comm, steps=[step(0, 0, 100)]))
    assert found["barrier"] == BlockedTime(2, 0, 2, 6 * MS, 3 * MS)
    assert found["recv"].calls_per_step == 0.5


def test_the_rank_held_least_is_kept_and_calls_beside_each_other_add_up():
    one, other = BlockedTime(1, 8, 1, 4 * MS, 4.0 * MS), BlockedTime(1, 8, 1, 2 * MS, 2.0 * MS)
    assert one + other == BlockedTime(2, 16, 2, 6 * MS, 2.0 * MS)
    assert one.beside(other) == BlockedTime(2, 16, 1, 6 * MS, 6.0 * MS)
    assert (one + other).exposed_ms_per_step == pytest.approx(3)


def test_what_was_not_measured_stays_unknown():
    unwaited = rank_trace(comm=[issued("all_reduce", 0, 1)])
    device = rank_trace(comm=[sync("all_reduce", 0, 1)], head=header(device="cuda"))
    for trace in (unwaited, device):
        sums = held(trace)["all_reduce"]
        assert (sums.exposed_ns, sums.least_exposed_ns) == (None, None)
    assert (sums + BlockedTime(1, 8, 1, 4, 4.0)).exposed_ms_per_step is None


def test_nothing_chosen_gives_no_rows():
    assert held(rank_trace()) == {}
    assert held(rank_trace(comm=[sync("barrier", 1, 2)]), steps=0) == {}
