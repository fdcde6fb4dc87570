from __future__ import annotations

from dsprof.diagnosis.parts.communication import ArrivalInfo
from dsprof.diagnosis.parts.steps import WaitMatrix
from dsprof.reports.base import Options
from dsprof.reports.html import RENDERER, waits
from tests.factories import diagnosis as factory
from tests.reports.pages import parse

MATRIX = WaitMatrix(ranks=[0, 1], steps=[0, 1, 2], exposed_ns=[[4, 40, -1], [0, 4, 8]])


def test_the_last_rank_of_each_step_is_marked():
    arrivals = ArrivalInfo(last_ranks={"0": 1, "1": 0})
    first, second = waits.rows(MATRIX, arrivals, {1, 2})
    assert [cell.is_last for cell in first.cells] == [False, True, False]
    assert [cell.is_last for cell in second.cells] == [True, False, False]
    assert [(cell.label, cell.ns, cell.part) for cell in first.cells] == [
        ("0", 4, 0.1),
        ("1", 40, 1),
        ("2", None, 0),
    ]
    assert (first.mean_ns, second.mean_ns) == (40, 6)


def test_many_steps_share_cells_and_the_commonest_last_rank_is_marked():
    steps = list(range(120))
    matrix = WaitMatrix(ranks=[0, 1], steps=steps, exposed_ns=[steps, steps])
    arrivals = ArrivalInfo(last_ranks={"2": 1, "3": 1, "4": 0})
    rows = waits.rows(matrix, arrivals, set(steps))
    assert [cell.label for cell in rows[0].cells[:3]] == ["0-1", "2-3", "4-5"]
    assert [cell.is_last for cell in rows[1].cells[:3]] == [False, True, False]


def test_the_page_frames_the_last_rank_and_lists_the_arrivals():
    made = factory.diagnosis(2, 4)
    page = parse(RENDERER.render(made, Options()))
    shown = [ns for ns in made.waits.exposed_ns[0] if ns >= 0]
    assert len(page.all("td", **{"class": "last"})) == len(shown) > 0
    assert "others waited for it, per step" in page.one("section", id="waits").text


def test_waits_of_a_record_without_measured_steps_are_not_those_of_a_step():
    page = parse(RENDERER.render(factory.diagnosis(2, 2), Options()))
    section = page.one("section", id="waits")
    assert "Last arrivals in the record" in section.text
    assert "per step" not in section.text


def test_the_outline_is_explained_only_where_a_cell_has_one():
    sentence = "The outlined cell is the rank that the others waited for longest."
    made = factory.diagnosis(2, 4)
    section = parse(RENDERER.render(made, Options())).one("section", id="waits")
    assert sentence in section.text
    made.arrivals.last_ranks = {"0": 99}
    section = parse(RENDERER.render(made, Options())).one("section", id="waits")
    assert sentence not in section.text
    assert "A rank that waits little while all others wait long" in section.text


def test_cells_of_several_steps_are_said_to_be_means():
    steps = list(range(120))
    made = factory.diagnosis(2, 4)
    made.waits = WaitMatrix(ranks=[0, 1], steps=steps, exposed_ns=[steps, steps])
    text = parse(RENDERER.render(made, Options())).one("section", id="waits").text
    assert "Cells are means over several steps." in text
    assert "The outlined cell is the rank that the others most often waited for longest." in text


def test_one_rank_that_is_not_shown_is_not_several():
    made = factory.diagnosis(2, 4)
    made.arrivals.left_out_ranks = made.waits.left_out_ranks = 1
    section = parse(RENDERER.render(made, Options())).one("section", id="waits")
    assert "Not shown: 1 more rank." in section.text
    assert "Not shown: 1 more rank between those that wait least and longest." in section.text
