"""What a report says, before it is laid out."""

from __future__ import annotations

import msgspec
import pytest

from dsprof.diagnosis.model import Quality, StepParts
from dsprof.reports import content
from dsprof.rules.rule import Finding, Status
from tests.factories import diagnosis as factory


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
    assert round(sum(part.percent for part in bar.parts), 6) == 100


def test_the_mean_step_is_of_the_measured_steps() -> None:
    made = factory.diagnosis(2, 9).steps
    mean, measured = content.mean_step(made), made.rows[made.warmup_steps :]
    assert mean.total_ns == round(sum(row.total_ns for row in measured) / 7)
    exposed = next(part for part in mean.parts if part.key == "exposed_comm")
    assert exposed.ns == round(sum(row.exposed_comm_ns or 0 for row in measured) / 7)
    assert content.mean_step(factory.empty().steps).total_ns == 0


def test_no_steps_give_no_bars() -> None:
    assert content.step_bars([], at_most=5) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"saving_ms_per_step": (30.0, 48.0)}, "30 to 48 ms per step (7.5 to 12 %)"),
        ({"saving_bytes_per_step": 2**21}, "2.00 MiB per step"),
        ({}, ""),
    ],
)
def test_saving(changes: dict[str, object], words: str) -> None:
    bare = Finding(rule="r", title="t", status=Status.FAIL, summary="s")
    assert content.saving(msgspec.structs.replace(bare, **changes), 400_000_000) == words


def test_saving_without_a_step_time_has_no_share() -> None:
    finding = factory.findings()[0]
    assert content.saving(finding, 0) == "30 to 48 ms per step"


def test_a_clean_run_has_only_good_lines() -> None:
    made = factory.diagnosis()
    assert all(line.good for line in content.quality_lines(made.quality, made.run))


def test_clocks_that_were_not_compared_are_a_flaw() -> None:
    made = factory.diagnosis()
    lines = {line.label: line for line in content.quality_lines(Quality(), made.run)}
    assert not lines["Clock"].good
    assert "not measurable" in lines["Cost of dsprof"].text
    assert "Waits" not in lines


def test_ranks_that_are_missing_are_counted_in_the_facts() -> None:
    run = msgspec.structs.replace(factory.diagnosis(4, 2).run, ranks=[0, 1, 3], hosts=["node-a"])
    assert content.run_line(run)[1:3] == ["3 of 4 ranks", "node-a"]
