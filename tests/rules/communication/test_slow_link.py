from __future__ import annotations

from collections.abc import Callable

import pytest

from dsprof.analysis.alignment.clocks import Alignment
from dsprof.analysis.summarise import summarise_traces
from dsprof.analysis.summary import RankClock
from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.slow_link import SlowLink
from dsprof.rules.runner import judge
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import (
    assert_reached_at,
    group,
    header,
    issued,
    rank_trace,
    said,
    step,
    sync,
)

RULE = SlowLink()

STEPS = 8


def rank(
    number: int,
    transfer: float,
    *,
    late: float = 0,
    extra: float = 0,
    when: Callable[[int], bool] = lambda n: True,
    pair: int = -1,
    world: int = 8,
    meets: bool = False,
) -> RankTrace:
    """One of eight or more ranks in pairs: each step both come at 20 ms or later, and transfer.

    A rank that `meets` all others then waits for the slowest of them.
    """
    mine = number // 2 if pair < 0 else pair
    members = [2 * mine, 2 * mine + 1]
    groups = {
        1: group(id=1, key=f"pair {mine}", label="data", role="data", ranks=members),
        2: group(world, id=2),
    }
    comm = []
    for n in range(STEPS):
        wait, takes = late * when(n), transfer + extra * when(n)
        own, pair = (wait, 0) if number % 2 else (0, wait)
        at = 100 * n + 20
        comm.append(sync("all_reduce", at + own, takes + pair, seq=n, step=n))
        if meets:
            at += wait + takes
            comm.append(sync("barrier", at, 45 - wait - takes, group=2, seq=n, step=n))
    steps = [step(n, 100 * n, 100 * (n + 1)) for n in range(STEPS)]
    return rank_trace(number, world, comm=comm, groups=groups, steps=steps)


def test_the_pair_that_takes_longer_for_the_same_is_named():
    finding = said(RULE, *(rank(n, 40 if n in (4, 5) else 10 + n / 10) for n in range(8)))
    assert (finding.status, finding.ranks) == (Status.FAIL, (4, 5))
    assert finding.confidence == "medium"
    assert "29." in finding.summary
    assert finding.problem == "Collectives of ranks 4-5 delay a step by 29.8 ms"
    assert "One group does not show which" in finding.cause
    assert finding.evidence[0].rows[0][:2] == ("ranks 4-5", "all_reduce")
    assert finding.evidence[0].rows[0][2:] == (1 << 20, 6, 40_000_000, 10_200_000)


@pytest.mark.parametrize(("transfer", "severity"), [(25, Severity.MEDIUM), (40, Severity.HIGH)])
def test_a_fifth_of_the_step_is_severe(transfer: float, severity: Severity) -> None:
    finding = said(RULE, *(rank(n, transfer if n in (4, 5) else 10 + n / 10) for n in range(8)))
    assert finding.severity is severity


def test_of_three_pairs_the_slow_one_is_named_though_the_others_differ_by_six_percent():
    slow = {0: 10, 1: 10.6, 2: 30}
    finding = said(RULE, *(rank(n, slow[n // 2]) for n in range(6)))
    assert (finding.status, finding.ranks) == (Status.FAIL, (4, 5))
    apart = {0: 10, 1: 18, 2: 25}
    assert said(RULE, *(rank(n, apart[n // 2]) for n in range(6))).status is Status.PASS


def test_a_slow_link_saves_what_it_takes_longer_than_the_others() -> None:
    """Then the slowest of the others is waited for, which takes 10.7 ms."""
    traces = [rank(n, 40 if n in (4, 5) else 10 + n / 10, meets=True) for n in range(8)]
    finding = said(RULE, *traces)
    assert finding.saving_ms_per_step == pytest.approx((0.75 * 29.3, 1.25 * 29.3))
    assert finding.explains_ms == 0


def test_a_slow_link_saves_little_where_another_is_about_as_slow() -> None:
    takes = [10 + pair % 3 / 10 for pair in range(31)] + [38, 40]
    finding = said(RULE, *(rank(n, takes[n // 2], world=66, meets=True) for n in range(66)))
    assert (finding.ranks, finding.saving_ms_per_step) == ((64, 65), (1.5, 2.5))
    assert "take 29.9 ms per step (30 %) longer" in finding.summary
    assert finding.severity is Severity.MEDIUM


def test_a_slow_link_for_which_nobody_waits_is_no_failure() -> None:
    """Rank 1 computes 30 ms longer: it comes to the barrier as late as the slow pair."""
    takes = [10, 10, 10.2, 10.2, 40, 40, 10.6, 10.6]
    traces = [rank(n, takes[n], late=30 * (n < 2), meets=True) for n in range(8)]
    finding = said(RULE, *traces)
    assert (finding.status, finding.ranks) == (Status.INFO, (4, 5))
    assert finding.summary.endswith("Steps are hardly longer: other ranks are as late.")
    assert (finding.saving_ms_per_step, finding.explains_ms) == (None, 0)


def test_ranks_that_are_as_late_in_turn_leave_nothing_to_save() -> None:
    """Of the first two pairs one is as late as the slow pair, in each step another."""
    traces = [rank(n, 40 if n in (4, 5) else 10, meets=True) for n in range(8)]
    for n in range(4):
        traces[n] = rank(n, 10, late=30, when=lambda k, n=n: k % 2 == n // 2, meets=True)
    assert said(RULE, *traces).status is Status.INFO


def test_a_link_that_is_slow_in_some_steps_costs_their_mean() -> None:
    """In 6 measured steps 4 are slow: the median counts 6."""

    def sometimes(number: int) -> RankTrace:
        slow, usual = (rank(number, ms) for ms in (40, 10))
        if number not in (4, 5):
            return usual
        comm = [
            sync("all_reduce", 100 * n + 20, 10 if n in (3, 4) else 40, seq=n, step=n)
            for n in range(STEPS)
        ]
        return rank_trace(number, 8, comm=comm, groups=slow.groups, steps=slow.steps)

    finding = said(RULE, *map(sometimes, range(8)))
    assert finding.problem == "Collectives of ranks 4-5 delay a step by 20.0 ms"
    assert finding.evidence[0].rows[0][4:] == (40_000_000, 10_000_000)


def test_two_of_four_slow_groups_are_not_said_to_take_the_same_time() -> None:
    finding = said(RULE, *(rank(n, 40 if n in (2, 3, 4, 5) else 10) for n in range(8)))
    assert finding.summary == "No group stands out by its median transfer."


@pytest.mark.parametrize("world", [4, 8])
def test_a_rank_that_all_slow_groups_share_is_suspected(world):
    """Rank 0 is in the slow pair of the all-reduces, and in that of the all-gathers."""
    groups = {
        "all_reduce": [(0, 1), (2, 3), (4, 5), (6, 7)],
        "all_gather": [(0, 2), (1, 3), (4, 6), (5, 7)],
    }
    traces = []
    for number in range(world):
        mine = [(op, pair) for op, pairs in groups.items() for pair in pairs if number in pair]
        known = {
            i: group(id=i, key=f"{op} {pair}", label="data", role="data", ranks=list(pair))
            for i, (op, pair) in enumerate(mine, 1)
        }
        comm = [
            sync(op, 100 * n + 45 * i, 30 if 0 in pair else 10, group=i, seq=n, step=n)
            for n in range(STEPS)
            for i, (op, pair) in enumerate(mine, 1)
        ]
        steps = [step(n, 100 * n, 100 * (n + 1)) for n in range(STEPS)]
        traces.append(rank_trace(number, world, comm=comm, groups=known, steps=steps))
    finding = said(RULE, *traces)
    assert (finding.ranks, finding.confidence) == ((0,), "medium")
    assert "All 2 slow groups have rank 0 in common" in finding.cause
    assert [row[3:] for row in finding.evidence[0].rows] == [(6, 30_000_000, 10_000_000)] * 2


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(
        RULE,
        *(rank(n, 40 if n in (4, 5) else 10 + n / 10) for n in range(8)),
        groups=4,
        step_share=0.298,
        severe_share=0.298,
    )


def test_a_late_rank_makes_no_link_slow():
    """The pair 4, 5 spends 40 ms in the collective, 30 of them before rank 5 comes."""
    traces = [rank(n, 10 + n / 10, late=30 if n in (4, 5) else 0) for n in range(8)]
    assert said(RULE, *traces).status is Status.PASS


def test_groups_alike_pass():
    assert said(RULE, *(rank(n, 10 + n / 10) for n in range(8))).status is Status.PASS


def test_of_two_groups_the_slower_one_is_named_with_low_confidence():
    finding = said(RULE, *(rank(n, 40 if n > 1 else 10, meets=True) for n in range(4)))
    assert (finding.status, finding.ranks) == (Status.FAIL, (2, 3))
    assert (finding.confidence, finding.saving_ms_per_step) == ("low", (22.5, 37.5))


def test_of_two_groups_half_of_the_calls_make_none_slow():
    traces = [rank(n, 10, extra=30 * (n > 1), when=lambda k: k % 2 == 0) for n in range(4)]
    assert said(RULE, *traces).status is Status.PASS


def test_groups_across_nodes_are_not_compared_with_those_inside_one():
    def placed(number: int) -> RankTrace:
        across = number in (4, 5)
        trace = rank(number, 40 if across else 10 + number / 10)
        host = f"node-{number}" if across else "node-a"
        trace.header = header(number, 8, host=host, boot_id=host)
        return trace

    aligned = Alignment({n: RankClock() for n in range(8)}, "given")
    found = summarise_traces(map(placed, range(8)), aligned)
    assert [f.status for f in judge(found, [RULE])] == [Status.PASS]


def test_one_group_of_all_cannot_tell_its_links_apart():
    assert said(RULE, rank(0, 10), rank(1, 10)).status is Status.NOT_APPLICABLE


def test_ends_that_are_known_loosely_are_not_compared():
    def loose(number: int) -> RankTrace:
        trace = rank(number, 10)
        comm = [issued("all_reduce", 100 * n + 20, 100 * n + 60, pending_ns=1, seq=n, step=n)
                for n in range(STEPS)]  # fmt: skip
        return rank_trace(number, 8, comm=comm, groups=trace.groups, steps=trace.steps)

    assert said(RULE, *map(loose, range(8))).status is Status.NOT_APPLICABLE


def test_an_empty_trace_does_not_apply():
    assert said(RULE, rank_trace()).status is Status.NOT_APPLICABLE
