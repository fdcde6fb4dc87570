"""What a report says, before it is laid out."""

from __future__ import annotations

import math

import msgspec

from dsprof.diagnosis.parts.steps import StepParts
from dsprof.findings import formatting as fmt
from dsprof.reports import content
from tests.factories import diagnosis as factory
from tests.factories.steps_of_diagnosis import unsplit_steps


def step(number: int, copies_ns: int | None = 0) -> StepParts:
    return StepParts(
        step=number,
        compute_ns=100 + number,
        exposed_comm_ns=50,
        copies_ns=copies_ns,
        idle_ns=0,
        other_ns=10,
        total_ns=160 + number + (copies_ns or 0),
        slowest_rank=number,
    )


def test_steps_are_single_while_they_fit() -> None:
    bars = content.step_bars([step(3), step(4)], at_most=2)
    assert [(bar.label, bar.total_ns, bar.slowest_rank) for bar in bars] == [
        ("3", 163, 3),
        ("4", 164, 4),
    ]


def test_neighbouring_steps_are_averaged_beyond() -> None:
    bars = content.step_bars([step(number) for number in range(5)], at_most=2)
    assert [(bar.label, bar.parts[0].ns, bar.slowest_rank) for bar in bars] == [
        ("0-2", 101, None),
        ("3-4", 104, None),
    ]


def test_a_mean_over_a_missing_value_is_missing() -> None:
    (bar,) = content.step_bars([step(0, copies_ns=None), step(1, copies_ns=9)], at_most=1)
    copies = next(part for part in bar.parts if part.key == "copies")
    assert copies.ns is None
    assert math.isclose(sum(part.share for part in bar.parts), 1)


def test_a_share_is_rounded_once() -> None:
    """Rounded to 15.5 % first it would read 16 %, beside a headline with 15 %."""
    row = msgspec.structs.replace(
        step(0), compute_ns=84_540, exposed_comm_ns=15_460, other_ns=0, total_ns=100_000
    )
    exposed = next(part for part in content.step_parts(row) if part.key == "exposed_comm")
    assert fmt.share(exposed.share) == fmt.share(0.1546) == "15 %"


def test_parts_of_a_bar_add_up_where_one_is_not_known_of_each_step() -> None:
    counted = msgspec.structs.replace(step(0), compute_ns=None, other_ns=110)
    (bar,) = content.step_bars([counted, step(1), step(2)], at_most=1)
    assert sum(part.ns or 0 for part in bar.parts) == bar.total_ns


def test_without_a_measured_step_no_step_is_typical() -> None:
    assert content.measured_steps(factory.diagnosis(2, 9).steps) == set(range(2, 9))
    assert content.typical_step(factory.empty().steps).total_ns == 0


def test_no_steps_give_no_bars() -> None:
    assert content.step_bars([], at_most=5) == []


def test_what_is_left_of_nothing_is_not_known() -> None:
    bar = content.typical_step(unsplit_steps())
    assert not bar.is_split
    assert {(part.ns, part.share) for part in bar.parts} == {(None, 0.0)}
    assert content.typical_step(factory.diagnosis().steps).is_split


def test_ranks_that_are_missing_are_counted_in_the_facts() -> None:
    run = msgspec.structs.replace(factory.diagnosis(4, 2).run, ranks=[0, 1, 3], hosts=["node-a"])
    assert content.run_line(run)[1:3] == ["3 of 4 ranks", "node-a"]


def test_the_start_is_said_where_it_is_known() -> None:
    run = msgspec.structs.replace(factory.diagnosis().run, started="2026-11-29T23:11:45Z")
    assert content.started(run) == ["2026-11-29 23:11:45 UTC"]
    assert content.started(msgspec.structs.replace(run, started="")) == []


def test_no_steps_of_other_tools_are_not_counted() -> None:
    run = msgspec.structs.replace(factory.diagnosis().run, steps=0)
    assert "0 steps" in content.run_line(run)
    assert "0 steps" not in content.run_line(run, is_recorded=False)
    marked = msgspec.structs.replace(run, steps=3)
    assert "3 steps" in content.run_line(marked, is_recorded=False)
