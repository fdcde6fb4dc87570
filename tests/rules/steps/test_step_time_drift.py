"""Steps that take longer and longer."""

from __future__ import annotations

from dsprof.analysis.run.series import drift_of
from dsprof.findings.finding import Severity, Status
from dsprof.rules.steps.step_time_change import StepTimeChange
from dsprof.rules.steps.step_time_drift import StepTimeDrift
from tests.factories.trace import assert_reached_at, said
from tests.rules.steps.stepwise import columns_of, rank, ranks, rolling


def test_steps_that_grow_are_drift_and_no_change() -> None:
    growing = ranks(between=lambda n: n)
    finding = said(StepTimeDrift(), *growing)
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert "time outside all phases" in finding.cause
    assert "in 58 steps" in finding.summary
    assert said(StepTimeChange(), *growing).status is Status.PASS


def test_of_steps_that_grow_on_all_ranks_the_design_is_asked_first() -> None:
    """No count shows that sequences get longer."""
    finding = said(StepTimeDrift(), *ranks(computing=lambda n: n))
    assert finding.cause.startswith("Micro-steps, collectives and bytes per step did not change.")
    assert finding.action.startswith("Check whether the program makes batches or sequences longer")


def test_drift_of_one_rank_names_it() -> None:
    finding = said(
        StepTimeDrift(),
        rank(0, computing=lambda n: n),
        rank(1, waiting=lambda n: n),
    )
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))


def test_a_rank_that_slows_after_a_while_drifts_and_does_not_change_at_one_moment() -> None:
    """As by heat: the rise begins at step 20, which leaves half of it below the middle."""
    more = lambda n: 0.5 * max(n - 20, 0)  # noqa: E731
    traces = [rank(0, 150, computing=more), rank(1, 150, waiting=more)]
    finding = said(StepTimeDrift(), *traces)
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))
    assert finding.fix == "Compare temperature and clock of rank 0 with the others"
    assert said(StepTimeChange(), *traces).status is Status.PASS


def test_more_and_more_work_is_information() -> None:
    growing = ranks(computing=lambda n: n, calls=lambda n: n // 10)
    assert said(StepTimeDrift(), *growing).status is Status.INFO


def test_steps_that_get_faster_and_faster_pass() -> None:
    assert said(StepTimeDrift(), *ranks(computing=lambda n: 60 - n)).status is Status.PASS


def test_thresholds_of_a_drift_are_reached_at_their_value() -> None:
    growing = ranks(between=lambda n: n)
    drift = drift_of(columns_of(*growing).total_ns)
    assert drift is not None
    more_ns = drift.end - drift.start
    at = {"severe_share": more_ns / drift.start, "z": drift.z, "steps": 58}
    assert_reached_at(StepTimeDrift(), *growing, **at)
    for name, value in (("share", more_ns / drift.start), ("sigmas", more_ns / drift.scatter)):
        low, high = ({name: value * (1 + part)} for part in (-1e-9, 1e-9))
        assert said(StepTimeDrift(), *growing, **low).status is Status.FAIL, name
        assert said(StepTimeDrift(), *growing, **high).status is Status.PASS, name


def test_a_drift_is_found_over_the_whole_run() -> None:
    growing = [rolling(one, lambda _: False) for one in ranks(steps=1000, between=lambda n: n / 20)]
    finding = said(StepTimeDrift(), *growing)
    assert "in 977 steps" in finding.summary
    assert said(StepTimeChange(), *growing).status is Status.PASS
