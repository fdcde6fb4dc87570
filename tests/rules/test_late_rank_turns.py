"""late-rank where one rank or host is late after another, or ranks are in turn."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.late_rank import LateRank
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import group, header, said
from tests.rules.arriving import STEPS, jittering
from tests.rules.steps import stepwise

RULE = LateRank()


def moving(*stretches: range, ranks: int = 4, hosts: int = 0, steps: int = 60) -> list[RankTrace]:
    """In each stretch the next rank is late by 60 ms, or all ranks of the next host."""
    size = ranks // hosts if hosts else 1

    def times(number: int) -> tuple[float, ...]:
        late = stretches[number // size] if number // size < len(stretches) else ()
        return tuple(20 + 60 * (n in late) + (n + number) % 3 for n in range(steps))

    made = jittering(steps, *(times(number) for number in range(ranks)))
    for number, trace in enumerate(made):
        trace.header = header(number, ranks, host=f"node{number // size}" if hosts else "node0")
    return made


def test_ranks_that_are_late_one_after_another_are_named_with_their_steps():
    finding = said(RULE, *moving(range(30), range(30, 45), range(45, 60)))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert finding.problem.endswith("for one rank after another")
    assert "rank 0 in steps 2 to 29, rank 1 in steps 30 to 44, rank 2" in finding.summary
    assert finding.fix == "Check what else ran on rank 0 in steps 2 to 29"
    assert [row[:3] for row in finding.evidence[1].rows] == [
        ("0", 2, 29),
        ("1", 30, 44),
        ("2", 45, 59),
    ]


def test_in_a_single_step_ranks_are_late_in_no_turn():
    finding = said(RULE, *jittering(2, (80,), (20,), (30,)))
    assert (finding.status, finding.title) == (Status.INFO, "Ranks wait in this step")
    assert "rank 0 causes over two thirds of the wait" in finding.summary
    assert "in turn" not in finding.summary


def test_of_many_turns_the_costliest_are_listed_in_order_of_time():
    ends = [10, *range(24, 290, 14)]  # the first turns are shorter
    turns = [range(begin, end) for begin, end in pairwise([0, *ends])]
    finding = said(RULE, *moving(*turns, ranks=len(turns), steps=ends[-1]), seconds=0.5)
    table = finding.evidence[1]
    assert table.caption.endswith(f"the 16 costliest of {len(turns)} turns")
    assert "0" not in [row[0] for row in table.rows]
    assert list(finding.steps) == sorted(row[1] for row in table.rows)


def test_a_rank_that_was_late_for_most_of_the_run_hides_no_later_one():
    finding = said(RULE, *moving(range(45), range(45, 60)))
    assert "rank 0 in steps 2 to 44, rank 1 in steps 45 to 59" in finding.summary


def test_a_rank_that_is_late_again_after_another_one_leads():
    """It may be late all the time, and the other one more so for a while."""
    late = tuple(60 if n < 20 or n >= 32 else 40 for n in range(60))
    more = tuple(22 if n < 20 or n >= 32 else 80 for n in range(60))
    finding = said(RULE, *jittering(60, late, more, (20, 21, 22), (21, 20)))
    assert (finding.ranks, finding.problem[:18]) == ((0,), "Rank 0 delays most")


def test_two_ranks_whose_delays_wander_are_not_late_one_after_another():
    draws = np.random.default_rng(1).standard_normal((10, 120)) * 4
    for place in range(1, 120):
        draws[:, place] += 0.7 * draws[:, place - 1]
    runs = [jittering(120, (50,), tuple((50 + one).clip(0, 89))) for one in draws]
    titles = [said(RULE, *run, seconds=0.5).title for run in runs]
    assert "Ranks wait for one rank after another" not in titles


def test_in_a_pipeline_a_rank_that_waits_for_another_stage_is_not_called_late():
    traces = moving(range(30), range(30, 60))
    for trace in traces:
        trace.groups[1].role = "data"
        trace.groups[2] = group(4, id=2, key="pipe", role="pipeline")
    assert said(RULE, *traces).status is Status.INFO


def test_hosts_that_are_late_one_after_another_are_named():
    """Each is the last for a while, which bounds its clock."""
    stretches = [range(at, at + 15) for at in range(0, 60, 15)]
    finding = said(RULE, *moving(*stretches, ranks=8, hosts=4))
    assert (finding.status, finding.ranks) == (Status.FAIL, ())
    assert "for one host after another: node0 in steps 2 to 14, node1 in steps" in finding.summary
    assert finding.explains_ms == pytest.approx(58 * 6 / 8, rel=0.1)


def test_ranks_that_are_late_for_less_than_a_second_are_not_named():
    traces = moving(*(range(at, at + 6) for at in (0, 12, 24, 36)), ranks=8)
    assert said(RULE, *traces).status is Status.PASS
    assert said(RULE, *traces, seconds=0.5).status is Status.FAIL


def in_turn(first: float, second: float) -> list[RankTrace]:
    """Ranks 0 and 1 arrive late in every second step, by so many ms."""
    return jittering(STEPS, (0, first), (second, 0))


def test_ranks_that_take_turns_are_a_remark_and_nobody_is_named():
    finding = said(RULE, *in_turn(50, 50))
    assert (finding.status, finding.ranks) == (Status.INFO, ())
    assert finding.summary.endswith("different ranks arrive last in turn.")


def test_of_ranks_that_take_turns_the_one_that_is_waited_for_longest_is_named():
    """Other findings name it, too: so this one must not seem to say that all cost the same."""
    finding = said(RULE, *in_turn(30, 70))
    assert (finding.status, finding.ranks) == (Status.INFO, ())
    assert finding.summary.endswith("in turn, but rank 1 causes over two thirds of the wait.")


def test_of_two_ranks_that_wait_for_one_stall_none_takes_turns() -> None:
    """They were said to arrive last in turn; noise makes either rank later in some steps."""

    def late(which: int) -> stepwise.Extra:
        return lambda n: 8 * (n % 2 == which) + 9000 * (which == 1 and n == 31)

    traces = [stepwise.rank(n, computing=late(n), waiting=late(1 - n)) for n in range(2)]
    found = said(RULE, *traces)
    assert found.status is Status.PASS
    assert "(31 %, 1.5 % without the 2 longest of 58 steps)" in found.summary
    assert "in turn" in said(RULE, *traces, turns_share=0.01).summary


def test_of_ranks_that_take_turns_alike_none_is_waited_for_longest():
    finding = said(RULE, *in_turn(47, 53))
    assert finding.summary.endswith("different ranks arrive last in turn.")
