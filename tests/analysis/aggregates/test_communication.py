from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.communication import Communication
from dsprof.trace.schema import CounterRow, Site, StepCounters
from tests.factories.trace import (
    MS,
    captured,
    group,
    header,
    issued,
    rank_trace,
    step,
    summary,
    sync,
)

MIB = 1 << 20


def rows(*traces):
    return list(summary(*traces)[Communication].rows.items())


def one_step(*comm, rank=0, **fields):
    return rank_trace(rank, steps=[step(0, 0, 100)], comm=comm, **fields)


def test_rows_sum_ranks_and_steps():
    traces = [
        one_step(*(sync("all_reduce", at, 2, step=0) for at in (0, 10, 20)), rank=rank)
        for rank in (0, 1)
    ]
    ((kind, row),) = rows(*traces)
    assert (kind.op, kind.group, kind.group_size) == ("all_reduce", "world", 2)
    assert (row.calls, row.nbytes, row.rank_steps) == (6, 6 * MIB, 2)
    assert row.exposed_ns == 12 * MS


def test_a_transfer_of_a_batch_is_named_by_its_own_direction():
    """1F1B sends an activation and receives a gradient at once."""
    batch = "activation from stage 0, gradient to stage 0"
    trace = one_step(
        sync("send", 0, 2, step=0, requested=batch),
        sync("recv", 2, 2, step=0, requested=batch),
        sync("send", 4, 2, step=0, requested="activation from stage 0"),
    )
    calls = {(kind.op, kind.requested): row.calls for kind, row in rows(trace)}
    assert calls == {("send", "activation from stage 0"): 2, ("recv", "gradient to stage 0"): 1}


def test_bandwidth_follows_nccl_tests():
    trace = one_step(
        sync("all_reduce", 0, 4, nbytes=8 * MIB, step=0), groups={1: group(4)}, world_size=4
    )
    ((kind, row),) = rows(trace)
    algbw = 8 * MIB / 0.004
    assert row.algbw == pytest.approx(algbw)
    assert row.busbw(kind) == pytest.approx(algbw * 1.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"requested": "all_gather_fn"},
        {"phase": "step"},
        {"dtype": "bfloat16"},
        {"nbytes": 100},
        {"on_wire": False},
        {"group": 2},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_collectives_that_differ_get_rows_of_their_own(changes):
    plain = sync("all_reduce", 0, 1, step=0)
    other = sync("all_reduce", 5, 1, **({"step": 0} | changes))
    pair = group(2, id=2, key="pair", label="pair")
    assert len(rows(one_step(plain, other, groups={1: group(), 2: pair}))) == 2


def test_groups_of_one_label_and_size_share_a_row():
    twin = group(2, id=2, key="twin")
    comm = [sync("all_reduce", 0, 1, step=0), sync("all_reduce", 5, 1, step=0, group=2)]
    ((_, row),) = rows(one_step(*comm, groups={1: group(), 2: twin}))
    assert (row.calls, row.rank_steps) == (2, 1)


def test_a_collective_without_end_is_counted_and_not_timed():
    comm = [
        issued("all_gather", 0, None, wait=1, waited=2, step=0),
        issued("all_gather", 10, 14, wait=12, waited=14, step=0),
    ]
    ((_, row),) = rows(one_step(*comm))
    assert (row.calls, row.in_flight_ns, row.timed_bytes) == (2, 4 * MS, MIB)


@pytest.mark.parametrize(
    "trace",
    [
        one_step(issued("all_gather", 0, 9, step=0)),
        one_step(sync("all_gather", 0, 9, step=0), head=header(device="cuda")),
    ],
    ids=["unwaited", "device"],
)
def test_exposed_time_that_was_not_seen_is_none(trace):
    ((_, row),) = rows(trace)
    assert row.exposed_ns is None


def test_counters_join_the_rows():
    counted = CounterRow(
        "all_reduce", 1, calls=3, nbytes=3 * MIB, dtype="float32", blocked_ns=5 * MS
    )
    trace = one_step(
        sync("all_reduce", 0, 2, step=0),
        counters=[StepCounters(0, [counted]), StepCounters(7, [counted])],
    )
    ((_, row),) = rows(trace)
    assert (row.calls, row.nbytes, row.rank_steps) == (4, 4 * MIB, 1)
    assert row.exposed_ns == 7 * MS
    assert row.timed_bytes == MIB


@pytest.mark.parametrize("ended", [0, 1])
def test_what_a_rank_sent_that_ended_before_its_first_step_is_of_no_step(ended):
    start = sync("broadcast", 0, 1)
    ranks = [one_step(sync("all_reduce", 0, 2, step=0), rank=1 - ended)]
    ranks.append(rank_trace(ended, comm=[start]))
    ((kind, row),) = rows(*sorted(ranks, key=lambda one: one.rank))
    assert (kind.op, row.calls, row.rank_steps) == ("all_reduce", 1, 1)


def test_the_commonest_calling_site_comes_first():
    sites = {1: Site(1, "rare.py", 3), 2: Site(2, "common.py", 9)}
    comm = [sync("all_reduce", at, 1, step=0, site=site) for at, site in ((0, 1), (5, 2), (9, 2))]
    ((_, row),) = rows(one_step(*comm, sites=sites))
    assert row.sites == (("common.py:9", 2), ("rare.py:3", 1))


def test_a_group_that_was_not_described_is_unknown():
    ((kind, _),) = rows(one_step(sync("all_reduce", 0, 1, step=0, group=99)))
    assert (kind.group, kind.group_size) == ("unknown", 0)


def test_calls_in_flight_together_count_once():
    comm = [
        issued("all_gather", start, start + 40, wait=start + 40, waited=start + 41, step=0)
        for start in (0, 10, 20)
    ]
    ((_, row),) = rows(one_step(*comm))
    assert row.in_flight_ns == 60 * MS
    assert row.algbw == pytest.approx(3 * MIB / 0.06)


@pytest.mark.parametrize(("pending", "speed"), [(2, None), (39, MIB / 0.04)])
def test_a_completion_that_is_only_an_upper_bound_gives_no_speed(pending, speed):
    late = issued("all_gather", 0, 40, wait=50, waited=50, pending_ns=pending * MS, step=0)
    ((kind, row),) = rows(one_step(late))
    assert row.in_flight_ns == 40 * MS
    assert row.algbw == (None if speed is None else pytest.approx(speed))
    assert (row.busbw(kind) is None) == (speed is None)


def test_counters_beside_detailed_steps_are_in_no_row():
    ((_, row),) = rows(captured(window=range(4, 7), steps=10))
    assert (row.calls, row.rank_steps, row.exposed_ns) == (3, 3, 15 * MS)


def test_counters_of_a_device_have_no_exposed_time():
    head = header(device="cuda")
    ((_, row),) = rows(captured(window=range(0), head=head))
    assert (row.exposed_ns, row.least_exposed_ns) == (None, None)
    assert row.calls > 0


def test_sibling_groups_of_one_role_share_a_row_that_names_their_ranks():
    siblings = {
        number: group(id=number, key=name, label=f"group {name}", name=name, role="data", ranks=r)
        for number, name, r in ((1, "3", [0, 2]), (2, "4", [1, 3]))
    }
    comm = [sync("all_reduce", 0, 1, step=0), sync("all_reduce", 5, 1, step=0, group=2)]
    ((kind, row),) = rows(one_step(*comm, groups=siblings))
    assert (kind.group, kind.role, kind.group_size) == ("data parallel", "data", 2)
    assert row.members == ((0, 2), (1, 3))


def test_large_groups_are_told_by_their_size_alone():
    ((_, row),) = rows(one_step(sync("all_reduce", 0, 1, step=0), groups={1: group(64)}))
    assert row.members == ()
