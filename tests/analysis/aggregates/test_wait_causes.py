from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.wait_causes import Awaited, WaitCauses
from dsprof.trace.schema import Site
from tests.factories.trace import (
    captured,
    fetch,
    flush,
    group,
    issued,
    rank_trace,
    step,
    summary,
    sync,
    zero_rank,
)


def awaits(*traces) -> WaitCauses:
    return summary(*traces)[WaitCauses]


def one_step(*comm, **fields):
    return rank_trace(steps=[step(0, 0, 100)], comm=comm, **fields)


def test_a_bucket_of_ddp_by_its_number_with_the_time_it_had():
    comm = [issued("all_reduce", 10, 30, wait=14, waited=30, step=0, flush=3, phase="backward")]
    flushes = [flush(3, 10, 20, library="DDP", bucket=2, step=0)]
    ((what, sums),) = awaits(one_step(*comm, flushes=flushes)).rows.items()
    assert what == Awaited("DDP", "gradients", "bucket 2", "all_reduce", "backward", True)
    assert sums.blocked.exposed_ms_per_step == pytest.approx(16)
    assert (sums.lead_ms, sums.in_flight_ms) == (pytest.approx(4), pytest.approx(20))


def test_calls_that_only_the_last_is_waited_for_have_the_lead_of_that_one():
    """As DeepSpeed gathers in a row: those before are waited for with the last."""
    comm = [issued("all_gather", at, 30, step=0, phase="forward") for at in (10, 11, 12)]
    comm.append(issued("all_gather", 14, 30, wait=18, waited=30, step=0, phase="forward"))
    ((_, sums),) = awaits(one_step(*comm)).rows.items()
    assert sums.blocked.calls == 4
    assert sums.lead_ms == pytest.approx(4)
    ((_, none),) = awaits(one_step(*comm[:3])).rows.items()
    assert none.lead_ms == 0


def test_units_of_fsdp_by_their_module():
    comm = [
        sync("all_gather", 1, 2, step=0, fetch=5),
        sync("reduce_scatter", 4, 2, step=0, flush=6, fetch=5),
    ]
    fetches = [fetch(5, 1, 2, library="FSDP2", module="layers.3", kind="prefetch")]
    flushes = [flush(6, 4, 2, library="FSDP2", module="layers.3")]
    names = {what.name for what in awaits(one_step(*comm, fetches=fetches, flushes=flushes)).rows}
    assert names == {"layers.3, prefetched", "layers.3"}


def test_zero_by_what_sent_the_bucket_and_the_rest_by_its_line():
    sites = {4: Site(id=4, file="train.py", line=9)}
    comm = [
        sync("all_reduce", 1, 2, step=0, flush=1),
        sync("broadcast", 4, 1, step=0, site=4),
        sync("barrier", 6, 1, step=0),
        sync("all_gather", 8, 1, step=0, fetch=99),
    ]
    trace = one_step(*comm, flushes=[flush(1, 1, 2, cause="full")], sites=sites)
    assert {(what.purpose, what.name) for what in awaits(trace).rows} == {
        ("gradients", "a full bucket"),
        ("other", "train.py:9"),
        ("other", ""),
        ("parameters", ""),
    }


def test_the_longest_come_first():
    comm = [sync("recv", 1, 2, step=0), sync("barrier", 4, 5, step=0), sync("send", 9, 0, step=0)]
    assert [what.family for what, _ in awaits(one_step(*comm)).longest(5)] == ["barrier", "recv"]


def test_a_synchronous_call_had_no_time():
    late = sync("recv", 1, 5, step=0, wait_ns=3_000_000)
    ((_, sums),) = awaits(one_step(late)).rows.items()
    assert sums.lead_ms == 0


def test_groups_of_one_counters_and_nothing_have_no_rows():
    for trace in (
        zero_rank(groups={1: group(1)}),
        captured(window=range(0), steps=8),
        rank_trace(),
    ):
        assert awaits(trace).rows == {}


def test_merging_in_any_grouping_is_the_same():
    one, two, three = (awaits(zero_rank(rank, 3, comm_ms=ms)) for rank, ms in enumerate((3, 5, 4)))
    assert one.merge(two).merge(three) == one.merge(two.merge(three))
