"""The page says how far figures can be trusted, and remarks from where the rule does."""

from __future__ import annotations

import msgspec
import pytest

from dsprof.analysis.alignment.clocks import NO_TIME_LINE
from dsprof.diagnosis.parts.run import HookNote, Quality, ThresholdInfo
from dsprof.diagnosis.quality_lines import quality_lines
from dsprof.rules.quality.data_quality import DataQuality
from tests.factories import diagnosis as factory

LIMITS = DataQuality.thresholds


def test_a_clean_run_has_only_good_lines() -> None:
    made = factory.diagnosis()
    assert {line.level for line in quality_lines(made)} == {"ok"}


def test_what_was_not_measured_is_neither_exact_nor_zero() -> None:
    made = factory.diagnosis(quality=Quality())
    lines = {line.label: line for line in quality_lines(made)}
    assert lines["Clock"].level == "note"
    assert lines["Cost of dsprof"].level == "note"
    assert lines["Cost of dsprof"].text.startswith("not measurable: no rank")
    assert "Waits" not in lines


def test_files_of_other_tools_are_judged_by_what_they_tell() -> None:
    foreign = Quality(is_recorded=False, clock_method=NO_TIME_LINE, clock_bound_ns=0)
    made = factory.diagnosis(quality=foreign)
    assert [line.label for line in quality_lines(made)] == ["Ranks", "Files"]
    cut = msgspec.structs.replace(foreign, unclean_ranks=[0, 1], broken_lines=3, missing_ranks=[1])
    lines = {line.label: line for line in quality_lines(factory.diagnosis(quality=cut))}
    assert lines["Ranks"].text.endswith("; no file of rank 1")
    assert (lines["End of the files"].level, lines["Events"].level) == ("flaw", "flaw")
    assert lines["End of the files"].text == "truncated for ranks 0-1"


def test_several_ranks_are_several() -> None:
    quality = Quality(missing_ranks=[2, 3], unclean_ranks=[0, 1])
    quality.hooks = [HookNote(name="c10d", why="not there", ranks=[0])]
    made = factory.diagnosis(quality=quality)
    lines = {line.label: line.text for line in quality_lines(made)}
    assert lines["Ranks"].endswith("no trace of ranks 2-3")
    assert lines["End of the run"].startswith("the records of ranks 0-1 break off;")
    assert lines["Hook c10d"] == "not there (rank 0)"


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
    lines = quality_lines(factory.diagnosis(quality=quality))
    assert [line.level for line in lines if line.level != "ok"] == [level]


def test_what_trailers_would_have_told_of_killed_ranks_is_unknown() -> None:
    killed = msgspec.structs.replace(factory.diagnosis(4).quality, unclean_ranks=[2, 3], waits=1200)
    lines = {one.label: one for one in quality_lines(factory.diagnosis(quality=killed))}
    assert lines["End of the run"].level == "flaw"
    assert {lines[label].level for label in ("Events", "Waits")} == {"note"}
    unknown = "unknown for ranks 2-3: the record was not closed"
    assert lines["Events"].text == f"dropped events are {unknown}"
    waits = f"1,200 recorded; unmatched ones are {unknown}"
    assert lines["Waits"].text == waits


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
        return next(line.level for line in quality_lines(made) if line.label == label)

    raised = ThresholdInfo(rule="data-quality", name=name, value=default * 2, is_default=False)
    assert [level(1.0), level(1.1), level(1.1, raised)] == ["ok", "note", "ok"]
