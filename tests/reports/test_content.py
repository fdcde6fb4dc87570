"""What a report says, before it is laid out."""

from __future__ import annotations

import math

import msgspec
import pytest

from dsprof.analysis.alignment.clocks import NO_TIME_LINE
from dsprof.diagnosis.model import HookNote, Quality, StepParts, ThresholdInfo
from dsprof.findings import formatting as fmt
from dsprof.reports import content
from dsprof.rules.quality import data_quality
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


def test_an_earlier_diagnosis_shows_the_mean_step() -> None:
    made = msgspec.structs.replace(factory.diagnosis(2, 9).steps, typical=None)
    mean, measured = content.typical_step(made), made.rows[2:]
    assert content.measured_steps(made) == set(range(2, 9))
    assert mean.total_ns == round(sum(row.total_ns for row in measured) / 7)
    exposed = next(part for part in mean.parts if part.key == "exposed_comm")
    assert exposed.ns == round(sum(row.exposed_comm_ns or 0 for row in measured) / 7)
    assert content.typical_step(factory.empty().steps).total_ns == 0


def test_no_steps_give_no_bars() -> None:
    assert content.step_bars([], at_most=5) == []


def test_a_clean_run_has_only_good_lines() -> None:
    made = factory.diagnosis()
    assert {line.level for line in content.quality_lines(made)} == {"ok"}


def test_what_was_not_measured_is_neither_exact_nor_zero() -> None:
    made = factory.diagnosis(quality=Quality())
    lines = {line.label: line for line in content.quality_lines(made)}
    assert lines["Clock"].level == "note"
    assert lines["Cost of dsprof"].level == "note"
    assert lines["Cost of dsprof"].text.startswith("not measurable: no rank")
    assert "Waits" not in lines


def test_files_of_other_tools_are_judged_by_what_they_tell() -> None:
    foreign = Quality(is_recorded=False, clock_method=NO_TIME_LINE, clock_bound_ns=0)
    made = factory.diagnosis(quality=foreign)
    assert [line.label for line in content.quality_lines(made)] == ["Ranks", "Files"]
    cut = msgspec.structs.replace(foreign, unclean_ranks=[0, 1], broken_lines=3, missing_ranks=[1])
    lines = {line.label: line for line in content.quality_lines(factory.diagnosis(quality=cut))}
    assert lines["Ranks"].text.endswith("; no file of rank 1")
    assert (lines["End of the files"].level, lines["Events"].level) == ("flaw", "flaw")
    assert lines["End of the files"].text == "truncated for ranks 0-1"


def test_several_ranks_are_several() -> None:
    quality = Quality(missing_ranks=[2, 3], unclean_ranks=[0, 1])
    quality.hooks = [HookNote(name="c10d", why="not there", ranks=[0])]
    made = factory.diagnosis(quality=quality)
    lines = {line.label: line.text for line in content.quality_lines(made)}
    assert lines["Ranks"].endswith("no trace of ranks 2-3")
    assert lines["End of the run"].startswith("ranks 0-1 ended without closing their traces")
    assert lines["Hook c10d"] == "not there (rank 0)"


def test_what_is_left_of_nothing_is_not_known() -> None:
    bar = content.typical_step(unsplit_steps())
    assert not bar.is_split
    assert {(part.ns, part.share) for part in bar.parts} == {(None, 0.0)}
    assert content.typical_step(factory.diagnosis().steps).is_split


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({"missing_ranks": [1]}, "flaw"),
        ({"dropped_events": 1}, "flaw"),
        ({"broken_lines": 1, "counted_only_steps": 1}, "flaw"),
        ({"counted_only_steps": 1}, "note"),
        ({"open_collectives": 1}, "note"),
        ({"unmatched_waits": 1}, "note"),
        ({"clock_bound_ns": None}, "note"),
        ({"hooks": [HookNote(name="c10d", why="not there")]}, "note"),
        ({"strangers": ["x: of another run"]}, "note"),
        ({"notes": ["n"]}, "note"),
    ],
)
def test_a_flaw_is_what_makes_figures_wrong(changes: dict[str, object], level: str) -> None:
    quality = msgspec.structs.replace(factory.diagnosis().quality, **changes)
    lines = content.quality_lines(factory.diagnosis(quality=quality))
    assert [line.level for line in lines if line.level != "ok"] == [level]


def test_what_trailers_would_have_told_of_killed_ranks_is_unknown() -> None:
    killed = msgspec.structs.replace(factory.diagnosis(4).quality, unclean_ranks=[2, 3], waits=1200)
    lines = {one.label: one for one in content.quality_lines(factory.diagnosis(quality=killed))}
    assert lines["End of the run"].level == "flaw"
    assert {lines[label].level for label in ("Events", "Waits")} == {"note"}
    assert lines["Events"].text == "dropped events are unknown for ranks 2-3: no trailer"
    waits = "1,200 recorded; unmatched ones are unknown for ranks 2-3: no trailer"
    assert lines["Waits"].text == waits


LIMITS = data_quality.RULE.thresholds


@pytest.mark.parametrize(
    ("label", "name", "changes"),
    [
        ("Cost of dsprof", "cost_share", {"training_cost_share": LIMITS.cost_share}),
        ("Clock", "clock_bound_ms", {"clock_bound_ns": round(LIMITS.clock_bound_ms * 1e6)}),
    ],
)
def test_the_page_remarks_from_where_the_rule_does(
    label: str, name: str, changes: dict[str, float]
) -> None:
    default: float = getattr(LIMITS, name)

    def level(factor: float, *given: ThresholdInfo) -> str:
        more = {field: value * factor for field, value in changes.items()}
        quality = msgspec.structs.replace(factory.diagnosis().quality, **more)
        limit = ThresholdInfo(rule="data-quality", name=name, value=default)
        made = factory.diagnosis(quality=quality, thresholds=list(given) or [limit])
        return next(line.level for line in content.quality_lines(made) if line.label == label)

    raised = ThresholdInfo(rule="data-quality", name=name, value=default * 2, is_default=False)
    assert [level(1.0), level(1.1), level(1.1, raised)] == ["ok", "note", "ok"]


def test_ranks_that_are_missing_are_counted_in_the_facts() -> None:
    run = msgspec.structs.replace(factory.diagnosis(4, 2).run, ranks=[0, 1, 3], hosts=["node-a"])
    assert content.run_line(run)[1:3] == ["3 of 4 ranks", "node-a"]


def test_no_steps_of_other_tools_are_not_counted() -> None:
    run = msgspec.structs.replace(factory.diagnosis().run, steps=0)
    assert "0 steps" in content.run_line(run)
    assert "0 steps" not in content.run_line(run, is_recorded=False)
    marked = msgspec.structs.replace(run, steps=3)
    assert "3 steps" in content.run_line(marked, is_recorded=False)
