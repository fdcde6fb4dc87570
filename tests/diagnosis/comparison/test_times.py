"""The parts of a step in two runs: which changes are more than noise."""

from __future__ import annotations

import re
from statistics import median

import msgspec
import pytest

from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.steps import Steps
from dsprof.findings.formatting import duration
from tests.diagnosis.comparison.compared import MS, compared, run, slower, times


def of_ranks(made: Diagnosis, ranks: int, steps: slice, factor: float) -> Diagnosis:
    """The run with steps of so many ranks, which are longer or shorter in the mean."""
    for row in made.steps.rows[steps]:
        row.ranks, row.total_ns = ranks, round(row.total_ns * factor)
    return made


def test_steps_that_a_rank_did_not_record_are_not_compared() -> None:
    """Rank 1 is slower, and recorded no steps at the end: without it the mean is shorter."""
    before, after = (of_ranks(run(), 2, slice(None), 1) for _ in range(2))
    total = times(compared(before, of_ranks(after, 1, slice(22, None), 0.7)))["total"]
    assert total.judgement in ("same", "inconclusive")
    assert total.after_ns == pytest.approx(total.before_ns, rel=0.01)


def test_steps_of_more_ranks_are_not_judged() -> None:
    before, after = of_ranks(run(), 2, slice(None), 1), of_ranks(run(), 1, slice(10, None), 0.7)
    made = compared(before, after)
    assert times(made)["total"].judgement == "not compared"
    why = "the steps are of 2 ranks before, of 1 rank after"
    assert made.verdict == f"Step times not compared: {why}"


def test_where_noise_hides_a_change_the_verdict_names_the_smallest_that_would_show() -> None:
    shaken = run()
    for row in shaken.steps.rows[20:]:
        row.total_ns = round(row.total_ns * 1.3)
    made = compared(run(), shaken)
    total = times(made)["total"]
    assert total.judgement == "inconclusive"
    assert total.low_ns is not None
    assert total.high_ns is not None
    hidden = duration((total.high_ns - total.low_ns) / 2)
    assert made.verdict.startswith("Within the noise: ")
    assert made.verdict.endswith(f". Record more steps: a change below {hidden} does not show")


def test_an_exposed_time_that_is_not_known_is_not_zero() -> None:
    made = run()
    first = made.communication[0]
    lost = msgspec.structs.replace(first, phase="forward", exposed_ns=None)
    found = compared(msgspec.structs.replace(made, communication=[first, lost]), made)
    (one,) = (change for change in found.operations if change.op == first.op)
    assert (one.before_exposed_ns, one.after_exposed_ns is None) == (None, False)


def test_a_longer_part_is_found_and_the_others_are_not() -> None:
    found = times(compared(run(), slower(run(), 1.5)))
    assert found["compute"].judgement == found["total"].judgement == "slower"
    assert found["exposed_comm"].judgement != "slower"
    low, high = found["total"].low_ns, found["total"].high_ns
    assert low is not None
    assert high is not None
    assert low < 0.5 * 303 * MS < high
    assert times(compared(slower(run(), 1.5), run()))["total"].judgement == "faster"


@pytest.mark.parametrize("factor", [0.5, 0.8, 0.97, 0.99, 1.0, 1.01, 1.03, 1.2, 1.5])
def test_a_range_excludes_zero_exactly_where_a_change_is_claimed(factor: float) -> None:
    for one in compared(run(), slower(run(), factor)).times:
        if one.low_ns is not None and one.high_ns is not None:
            excludes_zero = one.low_ns > 0 or one.high_ns < 0
            assert excludes_zero == (one.judgement in ("faster", "slower")), one


def test_the_verdict_is_one_line_with_share_times_and_interval() -> None:
    faster, longer = (
        compared(*pair).verdict for pair in ((slower(run(), 2), run()), (run(), slower(run(), 2)))
    )
    assert re.fullmatch(
        r"\d+ % faster: \d+ → \d+ ms per step \(99 % interval \d+\N{EN DASH}\d+ ms\)", faster
    )
    assert re.match(
        r"\d+ % slower: \d+ → \d+ ms per step \(99 % interval \d+\N{EN DASH}\d+ ms\)", longer
    )


def test_slow_steps_that_the_median_does_not_show_are_in_the_verdict() -> None:
    """A checkpoint makes every tenth step three times as long."""
    before, after = run(), run()
    for row in after.steps.rows[9::10]:
        row.total_ns *= 3
    verdict = compared(before, after).verdict
    assert "The mean is " in verdict
    assert verdict.endswith("outliers among the steps take more time")
    assert compared(after, before).verdict.endswith("outliers among the steps take less time")
    assert "mean" not in compared(before, slower(before, 2)).verdict


def test_steps_before_a_run_has_settled_are_left_out() -> None:
    made = run()
    typical = msgspec.structs.replace(made.steps.typical, settled_from=20)
    settled = msgspec.structs.replace(made.steps, typical=typical)
    found = times(compared(made, msgspec.structs.replace(made, steps=settled)))["total"]
    later = [row.total_ns for row in made.steps.rows if row.step >= 20]
    assert found.after_ns == median(later) != found.before_ns


def test_a_difference_below_the_tolerance_is_none() -> None:
    made = run()
    steady = msgspec.structs.replace(made.steps.rows[5], step=5)
    alike = [msgspec.structs.replace(steady, step=number) for number in range(40)]
    still = msgspec.structs.replace(made, steps=Steps(total=made.steps.total, rows=alike))
    assert times(compared(still, slower(still, 1.01)))["total"].judgement == "same"
    assert times(compared(still, slower(still, 1.10)))["total"].judgement == "slower"


def test_too_few_steps_are_not_judged() -> None:
    total = times(compared(run(6), run()))["total"]
    assert (total.judgement, total.low_ns) == ("not compared", None)
    assert total.why == "the earlier run has only 4 measured steps; record at least 8 in each"


def test_a_run_of_a_moment_is_not_judged() -> None:
    made = run()
    rows = [msgspec.structs.replace(row, total_ns=row.total_ns // 10) for row in made.steps.rows]
    short = msgspec.structs.replace(made, steps=msgspec.structs.replace(made.steps, rows=rows))
    total = times(compared(made, short))["total"]
    assert total.judgement == "not compared"
    has = "the later run has only 1.63 s of measured steps"
    assert total.why == f"{has}; record at least 5 s in each"


def test_what_one_run_did_not_measure_is_not_judged() -> None:
    made = run()
    blind = [msgspec.structs.replace(row, compute_ns=None) for row in made.steps.rows]
    other = msgspec.structs.replace(made, steps=msgspec.structs.replace(made.steps, rows=blind))
    compute = times(compared(made, other))["compute"]
    assert (compute.after_ns, compute.judgement) == (None, "not compared")
    assert "copies" not in times(compared(made, made))  # measured in neither


def test_the_rest_is_not_judged_where_only_one_run_shows_a_part_of_it() -> None:
    """Computation that a run could not measure is in the rest of its steps."""
    made = run()
    blind = [
        msgspec.structs.replace(row, compute_ns=None, other_ns=row.other_ns + row.compute_ns)
        for row in made.steps.rows
    ]
    other = msgspec.structs.replace(made, steps=msgspec.structs.replace(made.steps, rows=blind))
    for found in (times(compared(other, made)), times(compared(made, other))):
        assert found["other"].judgement == "not compared"
        assert found["other"].why == "other contains parts that only some of the steps show"
    assert times(compared(other, slower(other, 1.5, "other_ns")))["other"].judgement == "slower"
