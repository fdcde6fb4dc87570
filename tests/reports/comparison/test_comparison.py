"""A comparison in each format."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from dsprof.diagnosis.comparison.build import compare
from dsprof.diagnosis.comparison.model import Comparison
from dsprof.reports.comparison import RENDERERS, render, tables
from dsprof.reports.content import PARTS
from tests.factories import diagnosis as factory
from tests.reports.pages import parse


def made(text: str = "") -> Comparison:
    before, after = factory.diagnosis(2, 40), factory.diagnosis(2, 40)
    after.environment.effective_config["zero_optimization"]["stage"] = 3
    after.communication[0].bytes += 4
    after.findings.pop(0)
    if text:
        before, after = factory.hostile(text), factory.hostile(f"{text}2")
    return compare(before, after, (f"one{text}", f"two{text}"))


HEADINGS = ["Times", "Operations and bytes", "Operations in detail", "Findings", "Configuration"]


def test_the_page_leads_with_the_verdict_and_has_a_section_for_each_change() -> None:
    page = parse(render(made(), "html"))
    assert page.one("h1").text == made().verdict
    assert [one.one("h2").text for one in page.all("section")] == [
        *HEADINGS,
        "How runs are compared",
    ]
    assert [one.attributes["aria-label"] for one in page.all(role="group")] == HEADINGS
    assert page.all("script") == []


def test_the_page_begins_with_both_steps_on_one_scale() -> None:
    shown = made()
    assert shown.after.typical_step is not None
    parts = shown.after.typical_step.parts
    assert shown.before.typical_step is not None
    shown.before.typical_step.parts.compute_ns = None  # it is first in the other run only
    for name in ("compute_ns", "exposed_comm_ns", "other_ns", "total_ns"):
        setattr(parts, name, getattr(parts, name) // 2)
    (figure,) = parse(render(shown, "html")).one("header").all("figure")
    assert "before" in figure.text
    assert "after" in figure.text
    paths = [path.attributes["d"] for path in figure.all("path")]
    ends = [float(path.split("M")[1].split(" ")[0]) for path in paths]
    rows = [path.split(" ")[1].split("h")[0] for path in paths]
    assert set(rows) == {"0", "42"}
    assert max(end for end, row in zip(ends, rows, strict=True) if row == "42") < 500
    keys = [key.text for key in figure.all("li")]
    assert keys == [label for label in PARTS.values() if label in keys]
    caption = figure.one("figcaption").text
    assert "Before: median of 38 measured steps. After: median of 38 measured steps." in caption
    shown.before.typical_step = None  # no step was measured
    assert parse(render(shown, "html")).one("header").all("figure") == []


def test_the_text_begins_with_the_verdict_in_one_line() -> None:
    shown = render(made(), "text").decode()
    assert shown.splitlines()[0] == made().verdict
    assert shown.splitlines()[1].split()[:3] == made().summary.split()[:3]
    places = [shown.index(heading.upper()) for heading in HEADINGS]
    assert places == sorted(places)


def test_a_group_of_one_rank_has_one_rank() -> None:
    kind = msgspec.structs.replace(made().kinds[0], group="experts", group_size=1)
    assert "(experts, 1 rank, " in tables.kinds([kind], "").rows[0][0]


def test_a_change_that_rounding_would_hide_is_shown_in_full() -> None:
    shown = render(made(), "text").decode()
    (line,) = re.findall(r"^  all_reduce  .*changed$", shown, re.MULTILINE)
    first, second = re.findall(r"([\d,.]+) → ([\d,.]+)", line)[0]
    assert float(second.replace(",", "")) - float(first.replace(",", "")) == pytest.approx(
        4 / 76, abs=1e-3
    )


def test_why_times_are_not_compared_is_said_of_the_step_and_once_of_its_parts() -> None:
    short = compare(factory.diagnosis(2, 6), factory.diagnosis(2, 7), ("one", "two"))
    shown = " ".join(render(short, "text").decode().split())
    assert shown.count("run has only 4 measured steps") == 2  # verdict, and caption of the table
    assert shown.count("not compared") > 1


def test_json_holds_every_field() -> None:
    read = json.loads(render(made(), "json"))
    assert read["schema_version"] == 1
    assert read["configuration"] == [
        {"name": "zero_optimization.stage", "before": "2", "after": "3"}
    ]
    assert read["verdict"] == made().verdict


@pytest.mark.parametrize("width", [20, 60, 96, 160])
def test_lines_keep_to_the_width(width: int) -> None:
    longest = max(render(made(), "text", width=width).decode().splitlines(), key=len)
    assert len(longest) <= max(width, 60), longest


def test_names_from_a_run_are_text_on_the_page_and_on_the_terminal() -> None:
    attack = "</style><script>alert(1)</script>"
    page = parse(render(made(attack), "html"))
    assert page.all("script") == []
    shown = render(made("\x1b]0;owned\x07\u202e"), "text").decode()
    assert set(shown) & set("\x1b\x07\u202e") == set()


@pytest.mark.parametrize("name", [renderer.name for renderer in RENDERERS])
def test_the_same_comparison_gives_the_same_bytes(name: str) -> None:
    assert render(made(), name) == render(made(), name)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_steps_that_other_tools_did_not_mark_are_not_none(is_recorded: bool) -> None:
    other = factory.empty()
    other.quality.is_recorded = is_recorded
    other.run.source = ["train.log"]
    told = render(compare(factory.diagnosis(2, 40), other, ("one", "two")), "text").decode()
    [after] = [line for line in told.splitlines() if line.startswith("after: ")]
    assert ("0 steps" in after) is is_recorded


def test_sums_of_records_without_steps_are_not_called_those_of_a_step() -> None:
    before, after = factory.diagnosis(2, 2), factory.diagnosis(2, 2)  # both are warm-up
    after.communication[0].calls += 4
    told = render(compare(before, after, ("one", "two")), "text").decode()
    assert "Per rank over the whole record, on average" in told
    assert "per rank and step" not in told.lower()
