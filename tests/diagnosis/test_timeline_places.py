"""Where findings show in the timelines."""

from __future__ import annotations

import msgspec

from dsprof.diagnosis.parts.steps import StepMap, StepMark
from dsprof.diagnosis.parts.timelines import Bar, Timeline
from dsprof.diagnosis.timeline_places import timeline_places
from dsprof.findings.finding import Column, Finding, Status, Table

KINDS = ("all_gather", "all_gather_into_tensor", "all_reduce")


def step(number: int, why: str) -> Timeline:
    bars = [Bar(rank=0, lane="communication", kind=kind, start_ns=0, end_ns=1) for kind in KINDS]
    return Timeline(step=number, why=why, duration_ns=9, bars=bars)


TIMELINES = [step(7, "worst"), step(3, "median"), step(5, "sample")]


def finding(**more: object) -> Finding:
    given = {"rule": "r", "title": "t", "summary": "s", "status": Status.FAIL, "category": "steps"}
    return Finding(**(given | more))  # type: ignore[arg-type]


def place(one: Finding, marks: list[StepMark] | None = None) -> tuple[int, str, list[int]]:
    found = timeline_places([one], TIMELINES, StepMap(marks=marks or []))[0]
    return found.step, found.operation, found.ranks


def test_a_finding_is_at_a_step_that_it_names_else_in_the_worst() -> None:
    assert place(finding(steps=(4, 5)))[0] == 5
    assert place(finding(steps=(4,)))[0] == 7
    assert place(finding())[0] == 7


def test_a_straggler_is_at_a_step_in_which_it_is_late() -> None:
    marks = [
        StepMark(kind="straggler", step=at, column=at, rank=rank, row=rank, text="late")
        for at, rank in ((3, 0), (5, 1))
    ]
    assert place(finding(ranks=(1,)), marks) == (5, "", [1])


def test_its_collective_is_the_first_that_its_evidence_names_whole() -> None:
    table = Table(
        (Column("waiting for"), Column("calls", "count")),
        (("a bucket of all_reducers", 2), ("all_gather_into_tensor in forward", 1)),
    )
    assert place(finding(evidence=(table,)))[1] == "all_gather_into_tensor"
    assert place(finding(summary="Each all-reduce is late."))[1] == "all_reduce"


def test_what_passed_or_is_of_something_else_has_no_place() -> None:
    passed, memory = finding(status=Status.PASS), finding(category="memory")
    found = timeline_places([passed, memory, finding()], TIMELINES, StepMap())
    assert [one.finding for one in found] == [2]
    assert timeline_places([finding()], [], StepMap()) == []
    assert msgspec.json.decode(msgspec.json.encode(found[0]), type=type(found[0])) == found[0]
