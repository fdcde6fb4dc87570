"""One finding for each cause, and none for a saving of nothing."""

from __future__ import annotations

from typing import Any

import pytest

from dsprof.findings.finding import Finding, Severity, Status
from dsprof.rules import RULES
from dsprof.rules.causes import EXPOSED, IDLE, LATE, SYNCHRONISED, TRANSFERS
from dsprof.rules.rule import RuleMeta
from dsprof.rules.runner import judge
from tests.factories import device
from tests.factories.trace import summary, zero_rank


class Says:
    """A rule with one finding."""

    thresholds = None

    def __init__(self, name: str, status: Status = Status.INFO, leads: bool = False, **fields: Any):
        self.meta = RuleMeta(
            id=name,
            title="Fine",
            failing_title=f"{name} fails",
            why="",
            category="communication",
            needs=(),
            leads=leads,
        )
        self.finding = self.meta.finding(status, f"{name} says.", **fields)

    def check(self, run: Any, thresholds: Any) -> list[Finding]:
        return [self.finding]


def judged(*rules: Says) -> dict[str, Finding]:
    """Return what is said of a run that waits 20 ms a step for communication."""
    return {one.rule: one for one in judge(summary(zero_rank(comm_ms=20)), rules)}


SAVES = {"saving_ms_per_step": (9.0, 15.0), "severity": Severity.MEDIUM}


def test_what_says_that_a_part_is_long_is_a_facet_of_what_says_why() -> None:
    found = judged(
        Says("why", Status.FAIL, **SAVES),
        Says("waits", restates=EXPOSED),
        Says("grave", Status.FAIL, restates=EXPOSED, severity=Severity.HIGH),
        Says("idles", restates="device idle"),
    )
    assert [one.rule for one in found["why"].facets] == ["grave", "waits"]
    assert found["why"].severity is Severity.HIGH
    for name in ("waits", "grave"):
        assert found[name].status is Status.NOT_APPLICABLE
        assert found[name].summary == f"{name} says. Covered by why."
    assert found["idles"].status is Status.INFO


def test_a_cause_that_promises_no_saving_leads_what_it_explains() -> None:
    found = judged(
        Says("grave", Status.FAIL, restates=EXPOSED, severity=Severity.HIGH),
        Says("why", Status.FAIL, explains_ms=12.0, severity=Severity.MEDIUM),
        Says("saves", Status.FAIL, saving_ms_per_step=(3.0, 5.0), severity=Severity.HIGH),
    )
    assert [one.rule for one in found["why"].facets] == ["grave"]
    assert list(found)[:2] == ["why", "saves"]


@pytest.mark.parametrize(
    "why",
    [
        Says("why", Status.FAIL, saving_ms_per_step=(3.0, 5.0)),  # of 20 ms
        Says("why", Status.FAIL, explains_ms=4.0),
        Says("why", Status.FAIL, severity=Severity.HIGH),  # saves bytes, or nothing known
        Says("why", saving_ms_per_step=(15.0, 25.0)),  # no setting would improve it
    ],
)
def test_what_explains_little_of_it_leaves_it_as_a_finding(why: Says) -> None:
    found = judged(why, Says("waits", restates=EXPOSED))
    assert found["waits"].status is Status.INFO
    assert found["why"].facets == ()


@pytest.mark.parametrize(
    ("link", "status"),
    [
        (Says("slow-link", Status.FAIL, ranks=(2, 3)), Status.NOT_APPLICABLE),
        (Says("slow-link", Status.FAIL, ranks=(3,)), Status.NOT_APPLICABLE),
        (Says("slow-link", Status.FAIL, ranks=(0, 1, 2, 3)), Status.NOT_APPLICABLE),
        (Says("slow-link", Status.FAIL, ranks=(4, 5)), Status.FAIL),
        (Says("slow-link", Status.PASS), Status.FAIL),
    ],
)
def test_ranks_late_from_transfers_are_a_facet_of_their_link(link: Says, status: Status) -> None:
    late = Says("late", Status.FAIL, restates=TRANSFERS, ranks=(2, 3), explains_ms=15.0)
    found = judged(link, late, Says("waits", restates=EXPOSED))
    assert found["late"].status is status
    if status is Status.FAIL:  # it still explains the waits
        assert [one.rule for one in found["late"].facets] == ["waits"]


@pytest.mark.parametrize(
    ("late", "status"),
    [
        (Says("late-rank", Status.FAIL, ranks=(3,)), Status.NOT_APPLICABLE),
        (Says("late-rank", Status.FAIL, ranks=(2, 3)), Status.NOT_APPLICABLE),
        (Says("late-rank", Status.FAIL), Status.NOT_APPLICABLE),  # one rank after another
        (Says("late-rank", Status.FAIL, ranks=(2,)), Status.FAIL),
        (Says("late-rank", Status.UNKNOWN, ranks=(3,)), Status.FAIL),
    ],
)
def test_slower_steps_of_late_ranks_are_a_facet_of_these(late: Says, status: Status) -> None:
    """And one cause has one severity: the highest."""
    grave: dict[str, Any] = {"severity": Severity.HIGH, "ranks": (3,), "restates": LATE}
    found = judged(late, Says("slower", Status.FAIL, **grave))
    assert found["slower"].status is status
    is_facet = status is Status.NOT_APPLICABLE
    assert [one.rule for one in found["late-rank"].facets] == ["slower"] * is_facet
    assert (found["late-rank"].severity is Severity.HIGH) == is_facet


@pytest.mark.parametrize(
    ("step", "more_ms", "is_led"), [(40, 20, True), (30, 20, False), (40, 30, False)]
)
def test_longer_waits_of_all_ranks_are_a_facet_of_ranks_late_from_that_step_on(
    step: int, more_ms: float, is_led: bool
) -> None:
    """If these explain most of it: the network may have become slower, too."""
    late = Says("late-rank", Status.FAIL, ranks=(2, 3), steps=(40,), explains_ms=10.0)
    slower = Says("slower", Status.FAIL, restates=LATE, steps=(step,), explains_ms=more_ms)
    found = judged(late, slower)
    assert (found["slower"].status is Status.NOT_APPLICABLE) == is_led


def test_slower_steps_of_ranks_that_are_not_late_explain_what_the_others_wait() -> None:
    slower = Says("slower", Status.FAIL, ranks=(3,), restates=LATE, explains_ms=15)
    found = judged(slower, Says("waits", restates=EXPOSED))
    assert [one.rule for one in found["slower"].facets] == ["waits"]


def test_a_facet_of_a_facet_is_one_of_what_leads_both() -> None:
    late = Says("late-rank", Status.FAIL, ranks=(3,), restates=TRANSFERS)
    slower = Says("slower", Status.FAIL, ranks=(3,), restates=LATE)
    found = judged(Says("slow-link", Status.FAIL, ranks=(3,)), late, slower)
    assert {one.rule for one in found["slow-link"].facets} == {"late-rank", "slower"}


def test_without_a_cause_one_of_those_that_say_the_same_is_shown() -> None:
    rules = (
        Says("early", restates=EXPOSED),
        Says("usual", restates=EXPOSED, leads=True),
        Says("passes", Status.PASS, restates=EXPOSED),
    )
    found = judged(*rules)
    assert [found[name].status for name in ("early", "usual")] == [
        Status.NOT_APPLICABLE,
        Status.INFO,
    ]
    assert [one.rule for one in found["usual"].facets] == ["early"]
    assert found["passes"].status is Status.PASS
    failing = judged(*rules, Says("fails", Status.FAIL, restates=EXPOSED))
    assert {one.rule for one in failing["fails"].facets} == {"early", "usual"}


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"saving_bytes_per_step": 0}, Status.PASS),
        ({"saving_ms_per_step": (0.02, 0.04)}, Status.PASS),
        ({"saving_ms_per_step": (0.02, 0.04), "saving_bytes_per_step": 0}, Status.PASS),
        ({"saving_ms_per_step": (0.02, 0.04), "saving_bytes_per_step": 9}, Status.FAIL),
        ({"saving_ms_per_step": (0.05, 0.06)}, Status.FAIL),
        ({}, Status.FAIL),
    ],
)
def test_what_saves_nothing_is_no_finding(fields: dict[str, Any], status: Status) -> None:
    finding = judged(Says("small", Status.FAIL, severity=Severity.LOW, **fields))["small"]
    assert finding.status is status
    if status is Status.PASS:
        assert (finding.title, finding.severity) == ("Fine", Severity.NONE)
        assert finding.saving_bytes_per_step is None


def test_a_time_that_reads_as_zero_is_not_stated_beside_bytes() -> None:
    small = {"saving_ms_per_step": (0.02, 0.04), "saving_bytes_per_step": 9}
    assert judged(Says("small", Status.FAIL, **small))["small"].saving_ms_per_step is None


def test_an_idle_device_is_a_facet_of_the_synchronisation_that_makes_it_idle() -> None:
    remark = Says("computes", restates=IDLE)
    calls = Says("calls", Status.FAIL, restates=SYNCHRONISED, leads=True)
    found = judged(remark, Says("idle", Status.FAIL, restates=SYNCHRONISED), calls)
    assert {one.rule for one in found["calls"].facets} == {"computes", "idle"}
    # Idle for another reason: two causes, and the remark is of the idle device.
    found = judged(remark, Says("idle", Status.FAIL, restates=IDLE), calls)
    assert [one.rule for one in found["idle"].facets] == ["computes"]
    assert (found["calls"].status, found["calls"].facets) == (Status.FAIL, ())


def test_waits_for_a_straggler_in_profiles_are_its_facets() -> None:
    run = summary(device.busy(0, compute=40, comm=55), device.busy(1, compute=90, comm=5))
    found = {one.rule: one for one in judge(run, RULES) if one.status in (Status.FAIL, Status.INFO)}
    assert found["late-rank"].ranks == (1,)
    assert {one.rule for one in found["late-rank"].facets} >= {"low-compute-share"}
    assert not {"communication-bound-step", "low-comm-overlap", "low-compute-share"} & found.keys()
