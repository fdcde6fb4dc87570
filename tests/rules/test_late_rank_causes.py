"""Why a rank is late, as late-rank says."""

from __future__ import annotations

import pytest

from dsprof.findings.finding import Status
from dsprof.rules.communication.late_rank import LateRank
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import MS, copy, group, issued, rank_trace, said, span, step, sync
from tests.rules.arriving import STEPS, rank

RULE = LateRank()


@pytest.mark.parametrize(
    ("role", "late", "fix"),
    [
        ("expert", (1, 5), "Balance the tokens over experts"),
        ("context", (3, 7), "Give each rank as much attention to compute"),
        ("context", (3, 6), "Compare them with the other ranks"),
        ("data", (1, 5), "Compare them with the other ranks"),
    ],
)
def test_ranks_at_one_place_of_groups_that_divide_the_work_share_its_cause(role, late, fix):
    def grouped(number: int) -> RankTrace:
        members = list(range(4)) if number < 4 else list(range(4, 8))
        mine = group(4, id=1, key=f"{role} {members}", role=role, ranks=members)
        return rank(number, 80 if number in late else 35, world=8, groups={1: mine})

    finding = said(RULE, *map(grouped, range(8)))
    assert (finding.status, finding.ranks, finding.fix) == (Status.FAIL, late, fix)
    shared = f"They are rank {late[0]} of each of the 2 {role} parallel groups: the same "
    assert finding.cause.startswith(shared) is (fix != "Compare them with the other ranks")
    assert finding.explains_ms == pytest.approx(45 * 6 / 8)


def test_ranks_that_wait_for_input_together_are_not_said_to_compute_longer():
    late = [rank(n, 80, before=60, world=4) for n in (2, 3)]
    finding = said(RULE, rank(0, 30, before=10, world=4), rank(1, 30, before=10, world=4), *late)
    assert (finding.status, finding.ranks) == (Status.FAIL, (2, 3))
    assert "spends 50.0 ms more before its forward passes" in finding.cause
    assert finding.action.startswith("Look at data loading on rank")


def test_a_rank_that_waits_for_its_input_is_told_apart():
    finding = said(RULE, rank(0, 30), rank(1, 80, before=50))
    assert "spends 50.0 ms more before its forward passes" in finding.cause
    assert "data loading on rank 1" in finding.action


def test_without_phases_the_cause_is_not_guessed():
    finding = said(RULE, rank(0, 30, spans=[]), rank(1, 80, spans=[]))
    assert (finding.status, finding.ranks) == (Status.FAIL, (1,))
    assert "is unknown: " in finding.cause


def test_a_span_that_the_program_named_is_named_as_the_cause():
    def loading(number: int, load: float) -> RankTrace:
        spans = [span("forward", 100 * n, 100 * n + 90, n) for n in range(STEPS)]
        spans += [
            span("load", 100 * n, 100 * n + load, n, is_annotation=True) for n in range(STEPS)
        ]
        spans += [span("log", 100 * n, 100 * n + 3, n, is_annotation=True) for n in range(STEPS)]
        return rank(number, 30 if number == 0 else 80, spans=spans)

    finding = said(RULE, loading(0, 3.2), loading(1, 43.2))
    assert 'Rank 1 spends 43.2 ms per step, the others 3.20 ms, in "load".' in finding.cause
    assert finding.fix == 'Speed up "load" there'
    assert '"load"' not in said(RULE, loading(0, 3.2), loading(1, 13.2)).cause


def bare(number: int, first: float, last: float) -> RankTrace:
    """No phases: buckets at `first` and `last`, the last one until 90 ms of a step of 100."""
    comm = []
    for n in range(STEPS):
        comm.append(issued("all_reduce", 100 * n + first, 100 * n + 90, seq=2 * n, step=n,
                           wait=100 * n + last, waited=100 * n + last))  # fmt: skip
        comm.append(sync("all_reduce", 100 * n + last, 90 - last, seq=2 * n + 1, step=n))
    return rank_trace(
        number, comm=comm, steps=[step(n, 100 * n, 100 * n + 100) for n in range(STEPS)]
    )


def test_without_phases_a_rank_that_is_slow_between_collectives_computes_longer():
    finding = said(RULE, bare(0, 10, 30), bare(1, 20, 80))
    assert finding.ranks == (1,)
    assert "50.0 ms longer than those of the others, also between" in finding.cause
    assert finding.evidence[1].rows[0] == (1, 20 * MS, 60 * MS, 10 * MS)


def test_without_phases_copies_that_take_longer_are_the_cause():
    ranks = bare(0, 10, 30), bare(1, 20, 80)
    for trace, took in zip(ranks, (2, 45), strict=True):
        trace.copies = [copy(100 * n + 25, took, step=n) for n in range(STEPS)]
    finding = said(RULE, *ranks)
    assert (finding.ranks, finding.fix) == ((1,), "Pin the memory it copies from")
    assert "spends 43.0 ms more in copies between host and device" in finding.cause


def test_without_phases_a_rank_that_keeps_pace_is_held_up_before():
    finding = said(RULE, bare(0, 10, 30), bare(1, 60, 80))
    assert finding.ranks == (1,)
    assert "collective, of a step 50.0 ms later" in finding.cause
    assert "data loading on rank 1" in finding.action


@pytest.mark.parametrize(
    ("backward", "cause"),
    [
        ((25, 55), "collectives: it computes longer, or gets less processor time."),
        ((60, 75), "waits for input"),
    ],
)
def test_without_forward_what_lies_before_backward_is_not_taken_for_input(backward, cause):
    """A plain loop: backward is seen, forward is not. Both grow alike, or only what is before."""
    begin, arrive = backward
    spans = [span("backward", 100 * n + begin, 100 * n + arrive, n) for n in range(STEPS)]
    usual = [span("backward", 100 * n + 10, 100 * n + 25, n) for n in range(STEPS)]
    finding = said(RULE, rank(0, 25, spans=usual), rank(1, arrive, spans=spans))
    assert finding.ranks == (1,)
    assert cause in finding.cause


def after_rooted(number: int, held: float, op: str, **fields) -> RankTrace:
    """A rank that `op` blocks for `held` ms in each step, before it computes for 30 ms."""
    comm, spans = [], []
    for n in range(STEPS):
        at = 100 * n
        comm.append(sync(op, at, held, seq=2 * n + 1, step=n, **fields))
        spans.append(span("forward", at + held, at + held + 30, n))
        arrive = held + 30
        comm.append(sync("all_reduce", at + arrive, 90 - arrive, seq=2 * n + 2, step=n))
    steps = [step(n, 100 * n, 100 * (n + 1)) for n in range(STEPS)]
    return rank_trace(number, comm=comm, spans=spans, steps=steps)


@pytest.mark.parametrize(
    ("op", "words"),
    [("gather", "receives from all other ranks"), ("broadcast", "sends to all other ranks")],
)
def test_a_rank_that_is_held_as_the_root_is_not_said_to_compute(op, words):
    finding = said(RULE, after_rooted(0, 40, op), after_rooted(1, 2, op))
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))
    assert f"38.0 ms longer than the others in {op}" in finding.cause
    assert words in finding.cause
    assert finding.fix == f"Call {op} less often"


def test_steps_with_nothing_but_rooted_collectives_are_said_to_have_no_other():
    """Their ranks record a barrier, but before the first step."""
    ranks = [
        rank_trace(
            number,
            comm=[sync("all_reduce", 0, 5, seq=1, step=0)]
            + [sync("reduce", 100 * n, 9, seq=n + 1, step=n) for n in range(1, STEPS)],
            steps=[step(n, 100 * n, 100 * (n + 1)) for n in range(STEPS)],
        )
        for number in range(2)
    ]
    assert "a collective that waits for all ranks" in said(RULE, *ranks).summary


@pytest.mark.parametrize("fields", [{"flush": 1}, {"fetch": 1}])
def test_a_root_of_gradients_or_parameters_is_not_told_to_send_less(fields):
    """ZeRO reduces each partition to the rank that owns it."""
    finding = said(
        RULE, *(after_rooted(n, held, "reduce", **fields) for n, held in enumerate((40, 2)))
    )
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))
    assert "root" not in finding.cause
