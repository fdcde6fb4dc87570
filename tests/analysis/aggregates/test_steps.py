from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.communication import Communication
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.step_rows import Parts
from tests.factories.trace import (
    MS,
    captured,
    copy,
    counters,
    header,
    issued,
    rank_trace,
    span,
    step,
    summary,
    sync,
    zero_rank,
)


def total(*traces):
    return summary(*traces)[Steps].total


def test_parts_of_every_step_and_of_the_total_add_up():
    steps = summary(zero_rank(0, comm_ms=7), zero_rank(1, comm_ms=4))[Steps]
    assert steps.measured == [2, 3, 4, 5]
    for part in (*steps.parts.values(), steps.total):
        assert part.exposed_ns + part.compute_ns + part.other_ns == part.total_ns
    assert steps.total.exposed_ns == 4 * (7 + 4) * MS // 2


def test_calls_and_bytes_are_those_of_one_rank():
    steps = summary(zero_rank(0), zero_rank(1))[Steps]
    assert {(part.calls, part.nbytes) for part in steps.parts.values()} == {(1, 1 << 20)}
    assert (steps.total.calls, steps.total.nbytes) == (4, 4 << 20)


def test_time_outside_phases_and_waits_is_other():
    # 100 ms: phases 0-40 and 50-90, a wait at 85-95 that leaves the phase behind.
    trace = rank_trace(
        steps=[step(0, 0, 100)],
        spans=[span("forward", 0, 40), span("backward", 50, 90)],
        comm=[sync("all_reduce", 85, 10, step=0)],
    )
    part = total(trace)
    assert part.exposed_ns == 10 * MS
    assert part.compute_ns == 75 * MS
    assert part.other_ns == 15 * MS


def test_copies_are_a_part_of_their_own_where_they_are_seen():
    # Phases 0-90; copies 20-30, and 80-92 of which a wait at 75-85 hides 5 ms.
    trace = rank_trace(
        steps=[step(0, 0, 100)],
        spans=[span("backward", 0, 90)],
        comm=[sync("all_reduce", 75, 10, step=0)],
        copies=[copy(20, 10, step=0), copy(80, 12, step=0)],
    )
    part = total(trace)
    assert (part.exposed_ns, part.copies_ns) == (10 * MS, 17 * MS)
    assert part.compute_ns == 65 * MS
    assert part.other_ns == 8 * MS


def test_without_a_copy_copies_are_none_and_not_zero():
    assert total(rank_trace(steps=[step(0, 0, 100)])).copies_ns is None


def test_a_wait_across_the_end_of_a_step_is_split_between_the_two():
    trace = rank_trace(
        steps=[step(0, 0, 50), step(1, 50, 100)], comm=[sync("all_reduce", 45, 20, step=0)]
    )
    parts = summary(trace)[Steps].parts
    assert parts[0].exposed_ns == 5 * MS
    assert parts[1].exposed_ns == 15 * MS


def test_counters_stand_in_for_collectives_that_were_not_kept():
    trace = rank_trace(
        steps=[step(0, 0, 100)],
        spans=[span("forward", 0, 40)],
        counters=[counters(0, blocked=12)],
    )
    steps = summary(trace)[Steps]
    part = steps.total
    assert steps.is_counted
    assert (part.exposed_ns, part.compute_ns, part.other_ns) == (12 * MS, None, 88 * MS)


def test_a_capture_window_is_judged_and_averaged_by_itself():
    run = summary(*(captured(rank, window=range(4, 7), steps=10) for rank in (0, 1)))
    steps, whole = run[Steps], summary(zero_rank(0), zero_rank(1))[Steps]
    assert (steps.measured, steps.is_counted) == ([4, 5, 6], False)
    assert steps.counted == [0, 1, 2, 3, 7, 8, 9]
    assert steps.exposed_share == pytest.approx(whole.exposed_share)
    assert steps.total.compute_ns / 3 == whole.total.compute_ns / 4


def test_counted_steps_are_rows_whose_parts_add_up():
    parts = summary(captured(window=range(4, 7), steps=10))[Steps].parts
    assert len(parts) == 10
    assert (parts[8].exposed_ns, parts[8].compute_ns, parts[8].other_ns) == (20 * MS, None, 80 * MS)
    assert (parts[8].calls, parts[8].nbytes) == (parts[5].calls, parts[5].nbytes) == (1, 1 << 20)


def test_what_is_counted_and_never_reached_the_wire_is_no_traffic():
    steps = [step(0, 0, 9), step(1, 9, 19)]
    told = [counters(0), counters(1, on_wire=False, blocked=2)]
    trace = rank_trace(steps=steps, counters=told)
    parts = summary(trace)[Steps].parts
    assert [(parts[n].calls, parts[n].nbytes) for n in (0, 1)] == [(1, 1 << 20), (0, 0)]
    assert parts[1].exposed_ns == 2 * MS, "it held the rank all the same"
    kinds = summary(rank_trace(steps=steps[:1], counters=[counters(0, on_wire=False)]))
    assert [kind.on_wire for kind in kinds[Communication].rows] == [False]


def test_a_step_counted_on_one_rank_is_not_measured():
    late, soon = captured(0, window=range(8), steps=10), captured(1, window=range(5), steps=10)
    assert summary(late, soon)[Steps].measured == [2, 3, 4]


def test_counted_waits_that_were_never_seen_make_exposed_unknown():
    trace = rank_trace(steps=[step(0, 0, 9)], counters=[counters(0, is_async=True)])
    assert total(trace).exposed_ns is None


@pytest.mark.parametrize(
    "spans",
    [[], [span("step", 90, 99, 0)], [span("forward", 0, 9, 0), span("step", 90, 99, 0)]],
    ids=["none", "optimizer", "no backward"],
)
def test_without_forward_and_backward_compute_is_none_and_not_zero(spans):
    comm = [sync("all_reduce", 10, 30, step=0)]
    part = total(rank_trace(steps=[step(0, 0, 100)], comm=comm, spans=spans))
    assert (part.exposed_ns, part.compute_ns, part.other_ns) == (30 * MS, None, 70 * MS)


@pytest.mark.parametrize(
    "trace",
    [
        rank_trace(steps=[step(0, 0, 9)], head=header(device="cuda")),
        rank_trace(steps=[step(0, 0, 9)], comm=[issued("all_reduce", 1, 8, step=0)]),
    ],
    ids=["device", "unwaited"],
)
def test_what_cannot_be_measured_is_none_and_not_zero(trace):
    steps = summary(trace)[Steps]
    assert steps.total.exposed_ns is None
    assert steps.total.compute_ns is None
    assert steps.total.other_ns == steps.total.total_ns == 9 * MS
    assert steps.exposed_share is None
    assert steps.exposed_by_rank() == {}


def test_one_unmeasurable_rank_makes_the_mean_unmeasurable():
    device = rank_trace(1, steps=[step(0, 0, 9)], head=header(1, device="cuda"))
    assert total(rank_trace(0, steps=[step(0, 0, 9)]), device).exposed_ns is None


def test_a_step_is_the_mean_of_the_ranks_that_finished_it():
    steps = summary(zero_rank(0, steps=6), zero_rank(1, steps=4, step_ms=120))[Steps]
    assert steps.parts[3].total_ns == 110 * MS
    assert steps.parts[5].total_ns == 100 * MS
    assert steps.parts[3].slowest_rank == 1
    assert (steps.parts[3].fastest_ns, steps.parts[3].slowest_ns) == (100 * MS, 120 * MS)


def test_no_step_gives_an_empty_total():
    steps = summary(rank_trace())[Steps]
    assert steps.measured == []
    assert steps.total.total_ns == 0
    assert steps.exposed_ms_per_step is None


def test_share_is_of_measured_steps_alone():
    steps = summary(zero_rank(comm_ms=5, extra=lambda n, t: [sync("x", t, 20)] if n < 2 else []))
    assert steps[Steps].exposed_share == pytest.approx(0.05)


def test_waits_in_cpp_are_an_estimated_part_of_what_is_exposed():
    reduced = issued("all_reduce", 20, 50, wait=40, waited=50, step=0, is_estimated=True)
    gathered = sync("all_gather", 60, 30, step=0)
    steps = summary(rank_trace(steps=[step(0, 0, 100)], comm=[reduced, gathered]))[Steps]
    assert steps.total.exposed_ns == 40 * MS
    assert steps.estimated_share == 0.25
    assert summary(rank_trace(steps=[step(0, 0, 100)], comm=[gathered]))[Steps].estimated_share == 0


def test_forwards_are_those_of_the_rank_with_most():
    ranks = zero_rank(0, accumulation=2), zero_rank(1, accumulation=3)
    assert {part.forwards for part in summary(*ranks)[Steps].parts.values()} == {3}


def test_two_ranks_by_hand():
    """Of 100 ms one waits 14; of 110 the other waits 8 and copies 11."""
    copies = [copy(110 * number + 20, 11, step=number) for number in range(6)]
    steps = summary(
        zero_rank(0, comm_ms=7, accumulation=2),
        zero_rank(1, comm_ms=4, accumulation=2, step_ms=110, copies=copies),
    )[Steps]
    # Phases fill nine tenths of a step: computing takes 90 - 14 and 99 - 8 - 11.
    one = Parts(
        total_ns=105 * MS,
        exposed_ns=11 * MS,
        compute_ns=78 * MS,
        copies_ns=None,
        micro_steps=2,
        slowest_rank=1,
        fastest_ns=100 * MS,
        slowest_ns=110 * MS,
        calls=2,
        nbytes=2 << 20,
        forwards=2,
        ranks=2,
    )
    assert steps.parts == dict.fromkeys(range(6), one)
    assert steps.total == Parts(
        total_ns=420 * MS,
        exposed_ns=44 * MS,
        compute_ns=312 * MS,
        copies_ns=None,
        micro_steps=8,
        slowest_rank=1,
        fastest_ns=400 * MS,
        slowest_ns=440 * MS,
        calls=8,
        nbytes=8 << 20,
    )
    assert steps.measured_ns == {0: 400 * MS, 1: 440 * MS}
    assert steps.exposed_by_rank() == {0: 0.14, 1: pytest.approx(8 / 110)}
